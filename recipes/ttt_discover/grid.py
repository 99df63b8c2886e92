"""From reports to the batch of a step: the complete grid of groups and rollouts, or none."""

# Pure. Metadata of a report: step, group, rollout, groups_per_step, rollouts_per_group; optional:
# algorithm, comparison_set.

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from recipes.policy_gradient.rollouts import stale, unfit
from recipes.ttt_discover.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Refusal

ALGORITHMS = ("tttd", "ttt-discover")
CORRECTS = ("allowed_token_ids",)
"""Sampling parameters that the learner repeats."""


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
    """Return the oldest complete grid as a batch, in the order of its places.

    A grid with a flaw is refused whole. Incomplete grids wait, unless a later grid is complete.
    """
    refused: list[Refusal] = []
    grids: dict[int, dict[Place, Unit]] = {}
    for unit in waiting:
        place = place_of(unit.metadata, knobs)
        if isinstance(place, str):
            refused.append((unit, place, None))
        elif place in grids.setdefault(place.step, {}):
            refused.append((unit, "place_taken", None))  # the first report of a place counts
        else:
            grids[place.step][place] = unit
    complete = min((step for step, grid in grids.items() if len(grid) == knobs.grid), default=None)
    if complete is None:
        return Decision(refused=tuple(refused))
    for step, grid in grids.items():
        # A seeker begins a step when the step before has ended: nothing more comes to these.
        if step < complete:
            refused += [(unit, "incomplete_step", None) for unit in grid.values()]
    batch = tuple(unit for _, unit in sorted(grids[complete].items()))
    reason, lag = _flaw(batch, serving, knobs)
    if reason is not None:
        refused += [(unit, f"step_discarded: {reason}", lag) for unit in batch]
    if reason is not None or lag is None or lag < 0:
        return Decision(refused=tuple(refused))
    return Decision(batch, tuple(refused))


def _flaw(batch: Sequence[Unit], serving: LoadId, knobs: Knobs) -> tuple[str | None, int | None]:
    # A group compares rollouts of equal weights, and a grid with a gap is no grid.
    for unit in batch:
        if (reason := unfit(unit, knobs.score_range, corrects=CORRECTS)) is not None:
            return reason, None
    if len({unit.load_id for unit in batch}) > 1:
        return "mixed_releases", None
    return stale(batch[0], serving, knobs.max_staleness)
