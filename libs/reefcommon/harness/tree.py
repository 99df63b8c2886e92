"""The harness of a model as an immutable tree of entries, and the mutations of a proposal."""

# tree --recipe.propose--> mutations --admission.admit--> new tree --files--> artifact

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from reefcommon.errors import Poison
from reefcommon.evaluator import Evaluator
from reefcommon.events import TaskResult, Unit
from reefcommon.recipe import Decision, EvaluationPlan, Recipe
from reefcommon.recipe_context import Context

EntryKind = Literal["config", "rules", "memory", "agent_command", "skill", "code_extension"]
ENTRY_KINDS: tuple[EntryKind, ...] = get_args(EntryKind)
Operation = Literal["create", "update", "remove"]

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""The form of an id or a name (`fullmatch`). It becomes a file name."""

MAX_REJECTED = 25
"""The number of rejected proposals that a recipe is shown."""

_OPTIONS = {"config": dict, "disabled": bool, "kind": object}


class Inadmissible(Poison):
    """A rule refuses a proposal or a tree. The message never quotes its text."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A part of a harness. The fields of `config` (JSON) depend on the kind, see below."""

    # rules           text, in tree order
    # memory          text: a thing to know, and no order
    # skill           name, description, text, for the agent to look up
    # agent_command   name, description, text: a prompt template
    # config          target (`primary` or `models`), values for the agent's own file
    # code_extension  name, text: code that the agent loads

    id: str
    kind: EntryKind
    config: Mapping[str, Any] = field(default_factory=dict)
    disabled: bool = False


Tree = tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of a tree. `update` replaces the whole `config` if it is given.

    `options`: {kind, config, disabled?} to create, {config?, disabled?} to update, else None.
    """

    op: Operation
    id: str
    options: Mapping[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A proposal that was refused or lost. `tasks`: the numbers and words for each task."""

    mutations: tuple[Mutation, ...]
    reason: str
    tasks: tuple[TaskResult, ...] = ()


class HarnessRecipe(Recipe):
    """A recipe whose candidates are harness trees."""

    @abstractmethod
    def decide(self, waiting: Sequence[Unit]) -> Decision:
        """Return the next window and the refused units. `waiting`: oldest first, no tokens."""

    @abstractmethod
    async def propose(
        self, ctx: Context, tree: Tree, units: Sequence[Unit], rejected: Sequence[Rejection]
    ) -> Sequence[Mutation]:
        """Return the changes, if any. `rejected`: the last 25, oldest first.

        It may ask `ctx.models`; its dialogue is kept with the step. It may be repeated.
        """
        # The words of users in `units` are data, never instructions.

    def evaluation(self) -> EvaluationPlan | Evaluator:
        # Paired episodes on held-out tasks.
        return EvaluationPlan(method="tasks")


# ------------------------------------------------------------------ changing a tree


def apply(tree: Tree, mutations: Sequence[Mutation]) -> Tree:
    """Return the tree after all mutations. Raises Inadmissible if a mutation does not fit."""
    # A new tuple each time: to revert a proposal, drop it.
    for position, mutation in enumerate(mutations, start=1):
        tree = _apply_one(tree, mutation, f"mutation {position}")
    return tree


def _apply_one(tree: Tree, mutation: Mutation, where: str) -> Tree:
    index = next((i for i, entry in enumerate(tree) if entry.id == mutation.id), None)
    if mutation.op == "create":
        if index is not None:
            there = "an entry with this id exists; update it instead"
            raise Inadmissible(f"{where}: create, but {there}")
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
    options = _options(mutation, where, needed={"kind", "config"})
    if options["kind"] not in ENTRY_KINDS:
        raise Inadmissible(f"{where}: unknown kind; allowed are {', '.join(ENTRY_KINDS)}")
    return Entry(mutation.id, **options)


def _updated(entry: Entry, mutation: Mutation, where: str) -> Entry:
    options = _options(mutation, where, needed=set())
    if options.pop("kind", entry.kind) != entry.kind:
        remedy = "remove it and create another"
        raise Inadmissible(f"{where}: update may not change the kind of an entry; {remedy}")
    return replace(entry, **options)


def _options(mutation: Mutation, where: str, *, needed: set[str]) -> dict[str, Any]:
    # A copy: a recipe may keep and change the objects that it has proposed.
    options = deepcopy(dict(mutation.options or {}))
    if not needed <= options.keys() <= _OPTIONS.keys():
        wants = f"the options {', '.join(_OPTIONS)} and needs {', '.join(sorted(needed)) or 'none'}"
        raise Inadmissible(f"{where}: {mutation.op} takes {wants}")
    if not all(isinstance(value, _OPTIONS[name]) for name, value in options.items()):
        raise Inadmissible(f"{where}: config must be a JSON object and disabled a boolean")
    return options
