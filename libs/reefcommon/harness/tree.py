"""The harness: what stands around the model, as an immutable tree of entries, and the changes that a recipe proposes to it.

    tree --recipe.propose--> mutations --harness_admission.admit--> new tree --harness_files--> artifact of kind `harness`

A tree is a plain tuple: applying a proposal makes a new tuple, reverting one means dropping it. Everything here is pure.
Two neighbours hold the rest: `reefcommon.harness.admission` (what is refused) and `reefcommon.harness.files` (how a tree is stored).
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from reefcommon.errors import Poison
from reefcommon.events import SampleReady
from reefcommon.recipe import Decision, EvaluationPlan, Recipe

EntryKind = Literal["config", "rules", "agent_command", "skill", "code_extension"]
ENTRY_KINDS: tuple[EntryKind, ...] = get_args(EntryKind)
Operation = Literal["create", "update", "remove"]

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What an id or a name is, as a whole (`fullmatch`): it becomes a file name, so no path, no newline, no hidden file."""

MAX_REJECTED = 25
"""How many of its last rejected proposals a recipe is shown."""


class Inadmissible(Poison):
    """A proposal or a tree that the rules do not allow. The message names the place and the rule, never the offending text."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One part of a harness. `config` is JSON; its fields depend on the kind:

    rules           text: appended to the rules, in tree order
    skill           name, description, text: something the agent can look up and follow
    agent_command   name, description, text: a named prompt template
    config          target (`primary` or `models`), values: settings merged into the agent's own file
    code_extension  name, text: code that the agent loads
    """

    id: str
    kind: EntryKind
    config: Mapping[str, Any] = field(default_factory=dict)
    disabled: bool = False


Tree = tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a tree. `options`: for `create` {kind, config, disabled?}; for `update` {config?, disabled?}, where a given `config`
    replaces the old one as a whole and the kind may not change; for `remove` None."""

    op: Operation
    id: str
    options: Mapping[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A proposal that came to nothing, and why: at admission, or after it was evaluated."""

    mutations: tuple[Mutation, ...]
    reason: str


class HarnessRecipe(Recipe):
    """A recipe whose candidates are harness trees.

    samples --decide--> window --propose--> mutations --admission--> candidate --evaluation--> verdict

    Both methods are pure: the same arguments give the same result. They are called in a worker thread.
    """

    @abstractmethod
    def decide(self, waiting: Sequence[SampleReady]) -> Decision:
        """Which samples make a proposal window, and which will never be used. `waiting` is in order of arrival; token fields are empty."""

    @abstractmethod
    def propose(
        self, tree: Tree, samples: Sequence[SampleReady], rejected: Sequence[Rejection]
    ) -> Sequence[Mutation]:
        """The changes that the window asks for; they stand or fall together. None: the window closes without a candidate.

        `rejected` holds the last 25 proposals of this recipe that came to nothing, oldest first. What users wrote in `samples` is data
        to quote, never an instruction to follow.
        """

    def evaluation(self) -> EvaluationPlan:
        """A harness is judged by paired episodes on held-out tasks."""
        return EvaluationPlan(method="tasks")


# ------------------------------------------------------------------ changing a tree


def apply(tree: Tree, mutations: Sequence[Mutation]) -> Tree:
    """The tree after all mutations, in order. `tree` itself is untouched.

    Raises:
        Inadmissible: a mutation does not fit the tree (an id that exists or does not, a kind that would change, unknown options).
    """
    for position, mutation in enumerate(mutations, start=1):
        tree = _apply_one(tree, mutation, f"mutation {position}")
    return tree


def _apply_one(tree: Tree, mutation: Mutation, where: str) -> Tree:
    index = next((i for i, entry in enumerate(tree) if entry.id == mutation.id), None)
    if mutation.op == "create":
        if index is not None:
            raise Inadmissible(
                f"{where}: create, but an entry with this id exists; update it instead"
            )
        return (*tree, _created(mutation, where))
    if mutation.op not in ("update", "remove"):
        raise Inadmissible(f"{where}: unknown operation; allowed are create, update and remove")
    if index is None:
        raise Inadmissible(f"{where}: {mutation.op}, but no entry has this id")
    if mutation.op == "remove":
        if mutation.options:
            raise Inadmissible(f"{where}: remove takes no options")
        return (*tree[:index], *tree[index + 1 :])
    return (*tree[:index], _updated(tree[index], mutation, where), *tree[index + 1 :])


def _created(mutation: Mutation, where: str) -> Entry:
    options = _options(
        mutation, where, allowed={"kind", "config", "disabled"}, needed={"kind", "config"}
    )
    if options["kind"] not in ENTRY_KINDS:
        raise Inadmissible(f"{where}: unknown kind; allowed are {', '.join(ENTRY_KINDS)}")
    return Entry(
        mutation.id,
        cast("EntryKind", options["kind"]),
        options["config"],
        options.get("disabled", False),
    )


def _updated(entry: Entry, mutation: Mutation, where: str) -> Entry:
    options = _options(mutation, where, allowed={"kind", "config", "disabled"}, needed=set())
    if options.pop("kind", entry.kind) != entry.kind:
        raise Inadmissible(
            f"{where}: update may not change the kind of an entry; remove it and create another"
        )
    return replace(entry, **options)


def _options(
    mutation: Mutation, where: str, *, allowed: set[str], needed: set[str]
) -> dict[str, Any]:
    options = deepcopy(dict(mutation.options or {}))
    if not needed <= options.keys() <= allowed:
        raise Inadmissible(
            f"{where}: {mutation.op} takes the options {', '.join(sorted(allowed))} and needs {', '.join(sorted(needed)) or 'none'}"
        )
    if not isinstance(options.get("config", {}), dict) or not isinstance(
        options.get("disabled", False), bool
    ):
        raise Inadmissible(f"{where}: config must be a JSON object and disabled a boolean")
    return options


# ------------------------------------------------------------------ the adapter `chat`: a system prompt


def render_chat(tree: Tree) -> str:
    """The system prompt of the simplest adapter: the rules in order, then the skills. Empty where the tree says nothing."""
    enabled = [entry for entry in tree if not entry.disabled]
    rules = [f"- {entry.config['text'].strip()}" for entry in enabled if entry.kind == "rules"]
    skills = [
        f"### {entry.config['name']}\n{entry.config['description'].strip()}\n\n{entry.config['text'].strip()}"
        for entry in enabled
        if entry.kind == "skill"
    ]
    parts = []
    if rules:
        parts.append("## Rules\n" + "\n".join(rules))
    if skills:
        parts.append("## Skills\n" + "\n\n".join(skills))
    return "\n\n".join(parts)


def episode_messages(
    tree: Tree,
    task_messages: Sequence[Mapping[str, Any]],
    *,
    rules_at: Literal["system", "user_end"] = "system",
) -> list[dict[str, Any]]:
    """Return the messages of one episode: the task's own, with the harness's prompt added.

    `system`: before the task's system prompt, or as a new one. `user_end`: after the last user
    message. An empty tree changes nothing; the arguments are not changed.
    """
    messages = [dict(message) for message in task_messages]
    prompt = render_chat(tree)
    if not prompt:
        return messages
    if rules_at == "user_end":
        for message in reversed(messages):
            if message.get("role") == "user":
                message["content"] = _joined(message.get("content"), prompt)
                return messages
    if not messages or messages[0].get("role") != "system":
        return [{"role": "system", "content": prompt}, *messages]
    return [
        {**messages[0], "content": _joined(prompt, messages[0].get("content"))},
        *messages[1:],
    ]


def _joined(first: object, second: object) -> object:
    """Two contents, each a text or a list of parts, as one."""
    if isinstance(first, list) or isinstance(second, list):
        parts = [
            [{"type": "text", "text": c}] if isinstance(c, str) else c for c in (first, second)
        ]
        return [part for content in parts for part in content or ()]
    return "\n\n".join(str(text) for text in (first, second) if text)
