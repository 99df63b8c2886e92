"""From reports to the batch of a round: all of its units, or none."""

# Pure. Metadata of a report: role, round, group (the designer's, or a task's), number (its place
# among the units of the round that train) and units (how many these are).

from collections.abc import Mapping, Sequence
from typing import Any

from recipes.policy_gradient.barrier import Seat, Terms, oldest_complete
from recipes.policy_gradient.returns import group_advantages
from recipes.self_play.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision

DESIGNER = "designer"


def seat_of(stated: Mapping[str, Any]) -> Seat | str:
    """Return the place that a report states, or why it has none."""
    if stated.get("role") == DESIGNER and "number" not in stated:
        return "designer_not_trained"
    numbers = [stated.get(name) for name in Seat._fields]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return "no_place"
    seat = Seat(*numbers)  # type: ignore[arg-type]  # checked above
    return seat if seat.number < seat.units else "no_place"


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

    A round in which no group differs in its scores is refused whole.
    """

    def flaw(batch: Sequence[Unit]) -> str | None:
        return None if any(credit(batch)) else "no_difference"

    terms = Terms("round", knobs.score_range, knobs.max_staleness, flaw)
    return oldest_complete(waiting, lambda unit: seat_of(unit.metadata), serving, terms)
