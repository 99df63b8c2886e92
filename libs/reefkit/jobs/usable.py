"""The host's own rules on a unit: scores in range, and held-out reports."""

import math

from reefcommon.evaluation import HELD_OUT, is_held_out
from reefcommon.events import Unit, unit_kind
from reefcommon.recipe import Recipe
from reefkit.recipe_binding import Binding

OUT_OF_RANGE = "score_out_of_range"


def unusable(binding: Binding[Recipe], unit: Unit) -> str | None:
    """Return why a recipe may never use a unit, or None."""
    low, high = binding.recipe.score_range
    # The range first: a score that overflows in training overflows in a comparison too.
    scores = [unit.score, unit.signal.score if unit.signal is not None else None]
    if any(s is not None and not (math.isfinite(s) and low <= s <= high) for s in scores):
        return OUT_OF_RANGE
    reported = unit_kind(unit) == "report" and unit.score is not None
    if binding.holds_out and reported and is_held_out(unit.event_id):
        return HELD_OUT
    return None
