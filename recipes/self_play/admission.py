"""From reports to the batch of a round: all of its units, or none."""

# Pure. Metadata of a report: role, round, group (the designer's, or a task's), number (its place
# among the units of the round that train) and units (how many these are).

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from recipes.policy_gradient.returns import group_advantages
from recipes.policy_gradient.rollouts import stale, unfit
from recipes.self_play.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Refusal

CORRECTS = ("allowed_token_ids",)
"""Sampling parameters that the learner repeats."""
DESIGNER = "designer"


class Place(NamedTuple):
    round: int
    number: int
    units: int


def place_of(stated: Mapping[str, Any]) -> Place | str:
    """Return the place that a report states, or why it has none."""
    if stated.get("role") == DESIGNER and "number" not in stated:
        return "designer_not_trained"
    numbers = [stated.get(name) for name in Place._fields]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return "no_place"
    place = Place(*numbers)  # type: ignore[arg-type]  # checked above
    return place if place.number < place.units else "no_place"


def group_of(unit: Unit) -> str:
    """Return the units that it is compared with: of a role, and of a task."""
    return f"{unit.metadata.get('role')} {unit.metadata.get('group')}"


def credit(units: Sequence[Unit]) -> list[float]:
    """Return (r - mean) / std of each unit inside its group; 0 if all of its group are equal."""
    groups: dict[str, list[int]] = {}
    for index, unit in enumerate(units):
        groups.setdefault(group_of(unit), []).append(index)
    advantages = [0.0] * len(units)
    for indices in groups.values():
        relative = group_advantages([units[i].score or 0.0 for i in indices])
        for index, advantage in zip(indices, relative or [0.0] * len(indices), strict=True):
            advantages[index] = advantage
    return advantages


def oldest_round(waiting: Sequence[Unit], serving: LoadId, knobs: Knobs) -> Decision:
    """Return the oldest complete round as a batch, in the order of its places.

    A round with a flaw is refused whole, as is a round in which no group differs in its scores.
    """
    refused: list[Refusal] = []
    rounds: dict[int, dict[int, Unit]] = {}
    sizes: dict[int, int] = {}
    for unit in waiting:
        place = place_of(unit.metadata)
        if isinstance(place, str):
            refused.append((unit, place, None))
        elif sizes.setdefault(place.round, place.units) != place.units:
            refused.append((unit, "other_round", None))
        elif place.number in rounds.setdefault(place.round, {}):
            refused.append((unit, "place_taken", None))  # the first report of a place counts
        else:
            rounds[place.round][place.number] = unit
    complete = min((n for n, units in rounds.items() if len(units) == sizes[n]), default=None)
    if complete is None:
        return Decision(refused=tuple(refused))
    for number, units in rounds.items():
        # A round begins when the round before has ended: nothing more comes to these.
        if number < complete:
            refused += [(unit, "incomplete_round", None) for unit in units.values()]
    batch = tuple(unit for _, unit in sorted(rounds[complete].items()))
    reason, lag = _flaw(batch, serving, knobs)
    if reason is not None:
        refused += [(unit, f"round_discarded: {reason}", lag) for unit in batch]
    if reason is not None or lag is None or lag < 0:
        return Decision(refused=tuple(refused))
    return Decision(batch, tuple(refused))


def _flaw(batch: Sequence[Unit], serving: LoadId, knobs: Knobs) -> tuple[str | None, int | None]:
    # A group compares answers of equal weights, and a round with a gap has wrong means.
    for unit in batch:
        if (reason := unfit(unit, knobs.score_range, corrects=CORRECTS)) is not None:
            return reason, None
    if len({unit.load_id for unit in batch}) > 1:
        return "mixed_releases", None
    reason, lag = stale(batch[0], serving, knobs.max_staleness)
    if reason is None and not any(credit(batch)):
        reason = "no_difference"
    return reason, lag
