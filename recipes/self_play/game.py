"""The state of a game between two rounds: `pending` before training, `committed` after."""

# Pure but for the store that it is given.

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from recipes.policy_gradient.seeking import as_stored, check_identity, header
from recipes.self_play.domain import Domain, Task
from recipes.self_play.knobs import Knobs
from recipes.self_play.pool import Known, Pool, known, restored
from reefcommon.ids import digest
from reefcommon.recipe_context import State

KEY = "game"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed task. `fault`: the reason if it is invalid. `receipt` None: drawn by chance."""

    task: Task | None
    fault: str = ""
    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """The plays of a valid proposal. `receipts` are those of the plays without a hint."""

    proposal: int
    receipts: tuple[str, ...]
    plain: tuple[float, ...]
    hinted: tuple[float, ...]


@dataclass(slots=True)
class Pending:
    """A round that is not yet learned from. `matches` None: not yet played."""

    proposals: tuple[Proposal, ...]
    matches: tuple[Match, ...] | None = None

    def played(self, number: int) -> dict[int, Known]:
        """Return the valid proposals as they were played, by place."""
        made: dict[int, Known] = {}
        for match in self.matches or ():
            task = self.proposals[match.proposal].task
            assert task is not None  # only valid proposals are played
            made[match.proposal] = known(task, number, match.plain, match.hinted)
        return made


@dataclass(slots=True)
class Game:
    identity: dict[str, Any]
    pool: Pool = field(default_factory=Pool)
    round: int = 0
    pending: Pending | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def commit(self, outcome: str) -> None:
        """Take the pending round into the pool and go on to the next round."""
        assert self.pending is not None
        played = list(self.pending.played(self.round).values())
        self.pool.add(played)
        faults = dict(Counter(one.fault for one in self.pending.proposals if one.fault))
        row = {"round": self.round, "outcome": outcome, "valid": len(played), "faults": faults}
        if played:
            row |= {
                "plain": fmean(one.plain for one in played),
                "hinted": fmean(one.hinted for one in played),
                "regret": fmean(one.regret for one in played),
                "bands": dict(Counter(one.band for one in played)),
            }
        self.history.append(row)
        self.round, self.pending = self.round + 1, None

    def keep(self, store: State) -> None:
        """Put the state; the caller commits."""
        stored = {
            **header(self.identity, pending=self.pending is not None),
            "round": self.round,
            "pool": self.pool.state(),
            "pending": None if self.pending is None else asdict(self.pending),
            "history": self.history,
        }
        store.put(KEY, stored)


def identity_of(scenario: str, domain: Domain, knobs: Knobs) -> dict[str, Any]:
    """Return whatever decides the game. Knobs of the learner alone may change on the way."""
    names = [
        *("share", "proposer", "count", "plays", "hint_plays", "frontier_shown"),
        *("unique_rounds", "temperature", "seed"),
    ]
    whole = {"scenario": scenario, "domain": domain.name}
    whole |= {name: getattr(knobs, name) for name in names}
    whole["rules"] = digest(dict(domain.identity()))
    return as_stored(whole)


def load(store: State, identity: Mapping[str, Any]) -> Game:
    """Return the stored game, or a new game. Raises BadConfig if it has another identity."""
    stored = store.get(KEY)
    if stored is None:
        return Game(dict(identity))
    check_identity(stored, identity, "another game", "play under a new scenario")
    pending = stored["pending"]
    return Game(
        identity=dict(identity),
        pool=restored(stored["pool"]),
        round=stored["round"],
        pending=None if pending is None else _pending(pending),
        history=list(stored["history"]),
    )


def _pending(stored: Mapping[str, Any]) -> Pending:
    matches: Sequence[Mapping[str, Any]] | None = stored["matches"]
    return Pending(
        tuple(_proposal(one) for one in stored["proposals"]),
        None if matches is None else tuple(_match(one) for one in matches),
    )


def _proposal(stored: Mapping[str, Any]) -> Proposal:
    task = stored["task"]
    return Proposal(**{**stored, "task": None if task is None else Task(**task)})


def _match(stored: Mapping[str, Any]) -> Match:
    rows = {name: tuple(stored[name]) for name in ("receipts", "plain", "hinted")}
    return Match(stored["proposal"], **rows)
