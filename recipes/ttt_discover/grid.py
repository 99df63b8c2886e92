"""From reports to the batch of a step: the complete grid of groups and rollouts, or none."""

# Pure. Metadata of a report: step, group, rollout, groups_per_step, rollouts_per_group; optional:
# algorithm, comparison_set.

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from recipes.policy_gradient.barrier import Seat, Terms, oldest_complete
from recipes.ttt_discover.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision

ALGORITHMS = ("tttd", "ttt-discover")


class Place(NamedTuple):
    step: int
    group: int
    rollout: int


def metadata(place: Place, knobs: Knobs) -> dict[str, Any]:
    return {
        "algorithm": ALGORITHMS[0],
        **place._asdict(),
        "groups_per_step": knobs.groups_per_step,
        "rollouts_per_group": knobs.rollouts_per_group,
        "comparison_set": comparison_set(place),
    }


def comparison_set(place: Place) -> str:
    return f"tttd-step-{place.step}-group-{place.group}"


def place_of(stated: Mapping[str, Any], knobs: Knobs) -> Place | str:
    """Return the place that a report states, or why it has none in this grid."""
    numbers = [stated.get(name) for name in Place._fields]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return "no_place"
    place = Place(*numbers)  # type: ignore[arg-type]  # checked above
    shape = (stated.get("groups_per_step"), stated.get("rollouts_per_group"))
    if shape != (knobs.groups_per_step, knobs.rollouts_per_group):
        return "other_grid"
    if place.group >= knobs.groups_per_step or place.rollout >= knobs.rollouts_per_group:
        return "outside_the_grid"
    if stated.get("algorithm", ALGORITHMS[0]) not in ALGORITHMS:
        return "other_algorithm"
    if stated.get("comparison_set", comparison_set(place)) != comparison_set(place):
        return "other_comparison_set"
    return place


def oldest_grid(waiting: Sequence[Unit], serving: LoadId, knobs: Knobs) -> Decision:
    """Return the oldest complete grid as a batch, in the order of its places."""

    def seat_of(unit: Unit) -> Seat | str:
        place = place_of(unit.metadata, knobs)
        if isinstance(place, str):
            return place
        number = place.group * knobs.rollouts_per_group + place.rollout
        return Seat(place.step, number, knobs.grid)

    terms = Terms("step", knobs.score_range, knobs.max_staleness)
    return oldest_complete(waiting, seat_of, serving, terms)
