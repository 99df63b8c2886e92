"""The rules for a proposal before it is stored, and for a tree before it is run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from reefcommon.harness.text import value_objection
from reefcommon.harness.tree import (
    ENTRY_KINDS,
    NAME_PATTERN,
    Entry,
    EntryKind,
    Inadmissible,
    Mutation,
    Tree,
    apply,
)

MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 1024
MAX_ENTRIES = 200
MAX_TREE_BYTES = 256 * 1024
MAX_MUTATIONS = 50
RESERVED = frozenset({"reef-version-check", "reef-requests", "reef-pi-extension-api"})
"""Ids and names of the entries that Reef adds when a harness is installed."""

FIELDS: dict[EntryKind, dict[str, type]] = {
    "rules": {"text": str},
    "memory": {"text": str},
    "skill": {"name": str, "description": str, "text": str},
    "agent_command": {"name": str, "description": str, "text": str},
    "config": {"target": str, "values": dict},
    "code_extension": {"name": str, "text": str},
}
CONFIG_TARGETS = ("primary", "models")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An agent: the kinds that it renders, and if it runs foreign code in isolation.

    `settings`: the top keys that a tree may set, by target of `config`; all others are locked.
    """

    name: str
    kinds: frozenset[EntryKind]
    isolates_code: bool = False
    settings: Mapping[str, frozenset[str]] = field(default_factory=dict)


CHAT = Adapter("chat", frozenset({"rules", "memory", "skill"}))
"""The simplest adapter: a system prompt before the task."""


def admit(tree: Tree, mutations: Sequence[Mutation], adapter: Adapter) -> Tree:
    """Return the tree that a proposal makes. Raises Inadmissible."""
    # No reason quotes the proposal: a refused text may be a credential, and reasons go into logs.
    _check_number(mutations)
    for position, mutation in enumerate(mutations, start=1):
        if (found := value_objection(mutation.reason)) is not None:
            raise Inadmissible(f"mutation {position}: its reason {found}")
    candidate = apply(tree, mutations)
    if candidate == tree:
        raise Inadmissible("the proposal changes nothing")
    check_tree(candidate, adapter)
    return candidate


def screen(mutations: Sequence[Mutation], reason: str = "") -> None:
    """Check the texts and names of a proposal without its tree. Raises Inadmissible."""
    # A credential must not reach the log either, where the tree is not known.
    _check_number(mutations)
    if (found := value_objection(reason)) is not None:
        raise Inadmissible(f"the reason {found}")
    for position, mutation in enumerate(mutations, start=1):
        where = f"mutation {position}"
        _check_name(mutation.id, f"{where}: its id")
        for part, value in (("reason", mutation.reason), ("options", mutation.options or {})):
            if (found := value_objection(value)) is not None:
                raise Inadmissible(f"{where}: {part} {found}")


def _check_number(mutations: Sequence[Mutation]) -> None:
    if not 0 < len(mutations) <= MAX_MUTATIONS:
        raise Inadmissible(f"a proposal holds 1 to {MAX_MUTATIONS} mutations, not {len(mutations)}")


def check_tree(tree: Tree, adapter: Adapter) -> None:
    """Check a whole tree. Raises Inadmissible."""
    if len(tree) > MAX_ENTRIES:
        raise Inadmissible(f"a harness holds at most {MAX_ENTRIES} entries, not {len(tree)}")
    claimed: set[tuple[str, str]] = set()
    for position, entry in enumerate(tree, start=1):
        where = f"entry {position}"
        _check_entry(entry, where, adapter)
        # Names become file names, and some file systems do not tell upper case from lower.
        claims = {("id", entry.id)}
        if "name" in entry.config:
            claims.add((entry.kind, entry.config["name"].lower()))
        if claims & claimed:
            raise Inadmissible(f"{where} ({entry.kind}): another entry has the same id or name")
        claimed |= claims
    # All of it goes before every task, and through every event of an installation.
    if sum(len(orjson.dumps(dict(entry.config))) for entry in tree) > MAX_TREE_BYTES:
        raise Inadmissible(f"a harness holds at most {MAX_TREE_BYTES} bytes of text")


def _check_entry(entry: Entry, where: str, adapter: Adapter) -> None:
    _check_name(entry.id, f"{where}: its id")
    if entry.kind not in ENTRY_KINDS:
        raise Inadmissible(f"{where}: unknown kind; allowed are {', '.join(ENTRY_KINDS)}")
    where = f"{where} ({entry.kind})"
    # Code of a proposal would run with the rights of the user.
    if entry.kind == "code_extension" and not adapter.isolates_code:
        isolated = f"if the adapter runs it isolated, and {adapter.name} does not"
        raise Inadmissible(f"{where}: code is allowed only {isolated}")
    if entry.kind not in adapter.kinds:
        rendered = f"this kind; it renders {', '.join(sorted(adapter.kinds))}"
        raise Inadmissible(f"{where}: the adapter {adapter.name} cannot render {rendered}")
    _check_fields(entry, where)
    for name, value in entry.config.items():
        if (found := value_objection(value)) is not None:
            raise Inadmissible(f"{where}: field {name} {found}")
    if entry.kind == "config":
        _check_settings(entry, where, adapter)


def _check_fields(entry: Entry, where: str) -> None:
    fields = FIELDS[entry.kind]
    if entry.config.keys() != fields.keys():
        raise Inadmissible(f"{where}: its config has exactly the fields {', '.join(fields)}")
    for name, expected in fields.items():
        if not isinstance(entry.config[name], expected):
            form = "text" if expected is str else "a JSON object"
            raise Inadmissible(f"{where}: field {name} must be {form}")
    if "name" in fields:
        _check_name(entry.config["name"], f"{where}: field name")
    if "text" in fields and not entry.config["text"].strip():
        raise Inadmissible(f"{where}: field text is empty")
    description = entry.config.get("description", "-")
    if not description.strip() or "\n" in description or len(description) > MAX_DESCRIPTION_CHARS:
        length = f"1 to {MAX_DESCRIPTION_CHARS} characters"
        raise Inadmissible(f"{where}: field description is one line of {length}")
    if entry.kind == "config" and entry.config["target"] not in CONFIG_TARGETS:
        raise Inadmissible(f"{where}: field target must be one of {', '.join(CONFIG_TARGETS)}")


def _check_settings(entry: Entry, where: str, adapter: Adapter) -> None:
    # Endpoint, key, proxy, model: the binding's, whatever the agent calls them.
    allowed = adapter.settings.get(entry.config["target"], frozenset())
    if not entry.config["values"].keys() <= allowed:
        names = ", ".join(sorted(allowed)) or "none"
        raise Inadmissible(f"{where}: of these settings, a tree for {adapter.name} sets: {names}")


def _check_name(name: Any, what: str) -> None:
    formed = isinstance(name, str) and NAME_PATTERN.fullmatch(name)
    if not formed or len(name) > MAX_NAME_CHARS:
        form = f"1 to {MAX_NAME_CHARS} letters, digits, _ or -, and start with a letter or digit"
        raise Inadmissible(f"{what} must be {form}")
    if name.lower() in RESERVED:
        raise Inadmissible(f"{what} is reserved for Reef's own entries")
    if (found := value_objection(name)) is not None:
        raise Inadmissible(f"{what} {found}")
