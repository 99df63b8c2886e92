"""The barrier of a seeker: the complete units of a round are a batch, or none of them is."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from recipes.policy_gradient.rollouts import stale, unfit
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Refusal, ScoreRange

CORRECTS = ("allowed_token_ids",)
"""Sampling parameters that the learners of these rounds repeat."""


class Seat(NamedTuple):
    """A place in a round of so many units."""

    round: int
    number: int
    units: int


class Terms(NamedTuple):
    """`word`: a round, as refusals name it. `flaw`: why a whole round is useless, or None."""

    word: str
    score_range: ScoreRange
    max_staleness: int
    flaw: Callable[[Sequence[Unit]], str | None] = lambda _batch: None


def oldest_complete(
    waiting: Sequence[Unit], seat_of: Callable[[Unit], Seat | str], serving: LoadId, terms: Terms
) -> Decision:
    """Return the oldest complete round as a batch, in the order of its seats.

    `seat_of` returns a seat, or why there is none. A round with a flaw is refused whole. Incomplete
    rounds wait, unless a later round is complete.
    """
    refused: list[Refusal] = []
    rounds: dict[int, dict[int, Unit]] = {}
    sizes: dict[int, int] = {}
    for unit in waiting:
        seat = seat_of(unit)
        if isinstance(seat, str):
            refused.append((unit, seat, None))
        elif sizes.setdefault(seat.round, seat.units) != seat.units:
            refused.append((unit, f"other_{terms.word}", None))
        elif seat.number in rounds.setdefault(seat.round, {}):
            refused.append((unit, "place_taken", None))  # the first report of a seat counts
        else:
            rounds[seat.round][seat.number] = unit
    complete = min((n for n, units in rounds.items() if len(units) == sizes[n]), default=None)
    if complete is None:
        return Decision(refused=tuple(refused))
    for number, units in rounds.items():
        # A seeker begins a round when the round before has ended: nothing more comes to these.
        if number < complete:
            refused += [(unit, f"incomplete_{terms.word}", None) for unit in units.values()]
    batch = tuple(unit for _, unit in sorted(rounds[complete].items()))
    reason, lag = _flaw(batch, serving, terms)
    if reason is not None:
        refused += [(unit, f"{terms.word}_discarded: {reason}", lag) for unit in batch]
    if reason is not None or lag is None or lag < 0:
        return Decision(refused=tuple(refused))
    return Decision(batch, tuple(refused))


def _flaw(batch: Sequence[Unit], serving: LoadId, terms: Terms) -> tuple[str | None, int | None]:
    # Units are compared with others of equal weights, and a round with a gap has wrong means.
    for unit in batch:
        if (reason := unfit(unit, terms.score_range, corrects=CORRECTS)) is not None:
            return reason, None
    if len({unit.load_id for unit in batch}) > 1:
        return "mixed_releases", None
    reason, lag = stale(batch[0], serving, terms.max_staleness)
    return (terms.flaw(batch) if reason is None else reason), lag
