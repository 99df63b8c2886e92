"""From a series of samples to a verdict. Pure.

The warm-up, the first fifth, is left out: caches fill, pools open, sessions reach the number that
their time to live gives. Of the rest three estimates of growth are made that fail in different
ways: the median slope of all pairs of points (Theil-Sen), which a few spikes do not move; the
difference between the medians of the last and the first third, which a saw-tooth (a log that is
rotated, a file that is rewritten) does not move; and that between the last and the middle third,
which is small for what fills up and then stays. Growth is stated only where all exceed what is
allowed: what leaks goes on leaking.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any, Literal

WARM_UP = 0.2
MIN_POINTS = 6
MAX_POINTS = 240  # of more, every n-th is taken: the pairs are a square

Word = Literal["BOUNDED", "KEPT", "CAPPED", "GROWING", "TOO SHORT"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a series may grow by: `per_hour` whatever happens, `per_1000` more for each thousand
    requests where a policy keeps what they leave behind, and without limit below a `ceiling`
    that something other than this test enforces.
    """

    per_hour: float
    per_1000: float = 0.0
    ceiling: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """`requests`: answered since the start."""

    t_s: float
    value: float
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """KEPT: it grows with the traffic, as its policy says, and within the budget for that.
    CAPPED: it grows, and is below its ceiling.
    """

    name: str
    word: Word
    first: float
    middle: float
    last: float
    peak: float
    per_hour: float
    per_1000: float
    allowed_per_hour: float
    why: str = ""

    @property
    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(name: str, points: Sequence[Point], budget: Budget) -> Verdict:
    """The verdict on one series. Values are in the unit of the budget."""
    steady = _steady(points)
    values = [point.value for point in steady]
    if len(steady) < MIN_POINTS:
        last = points[-1].value if points else 0.0
        first = points[0].value if points else 0.0
        return Verdict(
            name,
            "TOO SHORT",
            first,
            last,
            last,
            max((p.value for p in points), default=0.0),
            0.0,
            0.0,
            budget.per_hour,
            budget.why,
        )
    third = len(steady) // 3
    parts = (steady[:third], steady[third:-third], steady[-third:])
    first, middle, last = (median(point.value for point in part) for part in parts)
    hours = (median(p.t_s for p in parts[2]) - median(p.t_s for p in parts[0])) / 3600
    requests = max(steady[-1].requests - steady[0].requests, 0)
    span_h = (steady[-1].t_s - steady[0].t_s) / 3600
    slope = _slope(steady) * 3600
    rise = (last - first) / hours
    late_hours = (median(p.t_s for p in parts[2]) - median(p.t_s for p in parts[1])) / 3600
    growth = min(slope, rise, (last - middle) / late_hours)
    per_hour_requests = requests / span_h
    allowed = budget.per_hour + budget.per_1000 * per_hour_requests / 1000
    word: Word = (
        "GROWING" if growth > allowed else "KEPT" if growth > budget.per_hour else "BOUNDED"
    )
    if word == "GROWING" and budget.ceiling is not None and max(values) <= budget.ceiling:
        word = "CAPPED"
    per_1000 = slope / per_hour_requests * 1000 if per_hour_requests else 0.0
    return Verdict(
        name, word, first, middle, last, max(values), slope, per_1000, allowed, budget.why
    )


def _steady(points: Sequence[Point]) -> list[Point]:
    if not points:
        return []
    start = points[0].t_s + WARM_UP * (points[-1].t_s - points[0].t_s)
    steady = [point for point in points if point.t_s >= start]
    return steady[:: max(len(steady) // MAX_POINTS, 1)]


def _slope(points: Sequence[Point]) -> float:
    """Median slope over all pairs, units a second."""
    return median(
        (b.value - a.value) / (b.t_s - a.t_s) for a, b in combinations(points, 2) if b.t_s > a.t_s
    )
