"""The state of a search between two steps: `pending` before training, `committed` after."""

# Pure but for the store that it is given.

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from recipes.policy_gradient.seeking import as_stored, check_identity, header
from recipes.ttt_discover.archive import Archive, Solution
from recipes.ttt_discover.knobs import Knobs
from recipes.ttt_discover.problem import Problem
from reefcommon.ids import digest
from reefcommon.recipe_context import State

KEY = "search"


@dataclass(frozen=True, slots=True)
class Tried:
    """A rollout that was verified. `solution` None: it failed."""

    receipt: str
    reward: float
    load_id: str
    words: str = ""
    solution: Solution | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """A step whose grid is verified and not yet learned from. Rows of `tried`: groups."""

    parents: tuple[str, ...]
    tried: tuple[tuple[Tried, ...], ...]

    def rows(self) -> list[Tried]:
        return [one for group in self.tried for one in group]


@dataclass(slots=True)
class Search:
    identity: dict[str, Any]
    archive: Archive
    step: int = 0
    pending: Pending | None = None
    published: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    """Of each step: best and mean reward, share of valid answers, load, and how it ended."""

    def commit(self, outcome: str) -> None:
        """Take the pending grid into the archive and go on to the next step."""
        assert self.pending is not None
        # The solutions count even if the step was discarded: the verifier has seen them, whichever
        # weights wrote them.
        for parent, group in zip(self.pending.parents, self.pending.tried, strict=True):
            self.archive.expand(parent, [one.solution for one in group], self.step)
        self.archive.prune()
        tried, best = self.pending.rows(), self.archive.best()
        self.history.append(
            {
                "step": self.step,
                "outcome": outcome,
                "load_id": tried[0].load_id,
                "mean": sum(one.reward for one in tried) / len(tried),
                "valid": sum(one.solution is not None for one in tried) / len(tried),
                "best": None if best is None else best.value,
            }
        )
        self.step, self.pending = self.step + 1, None

    def keep(self, store: State) -> None:
        """Put the state; the caller commits."""
        pending = None if self.pending is None else asdict(self.pending)
        stored = {
            **header(self.identity, pending=pending is not None),
            "step": self.step,
            "archive": self.archive.state(),
            "pending": pending,
            "published": self.published,
            "history": self.history,
        }
        store.put(KEY, stored)


def identity_of(scenario: str, problem: Problem, knobs: Knobs) -> dict[str, Any]:
    """Return whatever decides the search. Knobs of the learner alone may change on the way."""
    names = (
        *("algorithm", "groups_per_step", "rollouts_per_group", "exploration", "archive_size"),
        *("temperature", "max_tokens", "allowed_token_ids", "seed"),
    )
    parts = {name: getattr(knobs, name) for name in names}
    whole = {"scenario": scenario, "problem": problem.name, **parts}
    whole["verifier"] = digest(dict(problem.identity()))
    return as_stored(whole)


def load(store: State, identity: Mapping[str, Any], knobs: Knobs) -> Search:
    """Return the stored search, or a new search.

    Raises:
        BadConfig: the stored search has another identity.
    """
    archive = Archive(
        knobs.groups_per_step, exploration=knobs.exploration, capacity=knobs.archive_size
    )
    stored = store.get(KEY)
    if stored is None:
        return Search(dict(identity), archive)
    held = "the search of another problem or setting"
    check_identity(stored, identity, held, "search under a new scenario")
    archive.restore(stored["archive"])
    pending = None if stored["pending"] is None else _pending(stored["pending"])
    return Search(
        identity=dict(identity),
        archive=archive,
        step=stored["step"],
        pending=pending,
        published=stored["published"],
        history=list(stored["history"]),
    )


def _pending(stored: Mapping[str, Any]) -> Pending:
    groups: Sequence[Sequence[Mapping[str, Any]]] = stored["tried"]
    return Pending(tuple(stored["parents"]), tuple(tuple(map(_tried, g)) for g in groups))


def _tried(stored: Mapping[str, Any]) -> Tried:
    solution = stored["solution"]
    return Tried(**{**stored, "solution": None if solution is None else Solution(**solution)})
