"""The host's rules on a unit and its signal: scores in range, held out, readable."""

import math

from reefcommon.errors import Poison
from reefcommon.evaluation import HELD_OUT, is_held_out
from reefcommon.events import Release, Signal, Unit, unit_kind
from reefcommon.ids import LoadId
from reefcommon.recipe import Recipe
from reefcommon.releases import loads_of
from reefkit.jobs.faults import bounded
from reefkit.recipe_binding import Binding

OLD_HARNESS = "old_harness"
OUT_OF_RANGE = "score_out_of_range"


def unusable(binding: Binding[Recipe], unit: Unit, head: Release | None = None) -> str | None:
    """Return why a recipe may never use a unit, or None."""
    if head is not None and (reason := _under_old_harness(binding, unit, head)) is not None:
        return reason
    low, high = binding.recipe.score_range
    # The range first: a score that overflows in training overflows in a comparison too.
    scores = [unit.score, unit.signal.score if unit.signal is not None else None]
    if any(s is not None and not (math.isfinite(s) and low <= s <= high) for s in scores):
        return OUT_OF_RANGE
    reported = unit_kind(unit) == "report" and unit.score is not None
    if binding.holds_out and reported and is_held_out(unit.event_id):
        return HELD_OUT
    return None


def _under_old_harness(binding: Binding[Recipe], unit: Unit, head: Release) -> str | None:
    # A failure that led to a skill teaches the weights what the skill has mended already.
    wanted = binding.requires_harness
    if wanted is None:
        return None
    try:
        made = LoadId.parse(unit.loads.get("harness", ""))
    except ValueError:
        return f"{OLD_HARNESS}: unknown"
    served = LoadId.parse(loads_of(head)["harness"])
    needed = served.sequence if wanted == "head" else wanted
    fits = made.incarnation == served.incarnation and made.sequence >= needed
    return None if fits else f"{OLD_HARNESS}: {made.sequence}, required {needed}"


def checked_signal(signal: object) -> Signal | None:
    """Return a signal as it is read back. Raises Poison if it could not be."""
    if signal is None:
        return None
    if not isinstance(signal, Signal):
        raise Poison(f"signal() returned {type(signal).__name__}, not a Signal or None")
    try:  # `model_construct` checks nothing
        return Signal.model_validate_json(signal.model_dump_json(warnings=False))
    except ValueError as error:
        words = bounded(f"signal() returned a Signal that cannot be kept: {error}")
        raise Poison(" ".join(words.split())) from error
