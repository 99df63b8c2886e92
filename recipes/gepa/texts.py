"""The evolving texts of GEPA as entries of a tree, and the prompt that has them rewritten. Pure."""

from collections.abc import Mapping, Sequence

from recipes.gepa.knobs import Component
from recipes.gepa.search import Texts
from reefcommon.harness.tree import Entry, EntryKind, Mutation, Tree

PREFIX = "gepa-"

TASK = """A model does tasks, and reads a text before each of them. Improve this text.

You are shown the text and some tasks: the input, the model's output, its score, and words about it.
Work out what the tasks have in common: the form of the input, facts about the field that a reader
could not guess, and the way that leads to a high score on tasks like these. Write all of it down in
the new text, and keep the parts of the old one that help. It is for tasks that you have not seen:
never put the answer of a shown task into it.

The text is {name}. It has at most {limit} characters. Write it between two lines of three
backticks, and nothing after them."""
NAMES: Mapping[Component, str] = {
    "rules": "a list of rules",
    "skill": "a skill: instructions that the model looks up when it does such tasks",
}


def texts_of(tree: Tree, components: Sequence[Component]) -> dict[str, str]:
    found = {entry.id: str(entry.config.get("text", "")) for entry in tree}
    return {name: found.get(PREFIX + name, "") for name in components}


def changes(
    tree: Tree, texts: Texts, fields: Mapping[str, Mapping[str, str]], reason: str
) -> list[Mutation]:
    """Return the mutations that give the components these texts. An empty text is no entry."""
    there: dict[str, Entry] = {entry.id: entry for entry in tree}
    mutations = []
    for name, text in texts.items():
        own, entry = PREFIX + name, there.get(PREFIX + name)
        kind: EntryKind = "skill" if name == "skill" else "rules"
        if entry is None and text:
            options = {"kind": kind, "config": {**fields[name], "text": text}}
            mutations.append(Mutation("create", own, options, reason))
        elif entry is not None and not text:
            mutations.append(Mutation("remove", own, reason=reason))
        elif entry is not None and entry.config.get("text") != text:
            config = {"config": {**entry.config, "text": text}}
            mutations.append(Mutation("update", own, config, reason))
    return mutations
