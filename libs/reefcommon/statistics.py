"""Intervals and tests for measured scores, and independent seeds. All are deterministic."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from math import atan, cos, fsum, pi, sin, sqrt
from statistics import fmean, variance

from reefcommon.ids import digest

RESAMPLES = 2000
EXACT_UP_TO = 12
_SEED_DIGITS = 13


def independent_seed(*parts: object) -> int:
    """Return a seed in [0, 2**52). If a part differs, the seed is unrelated."""
    # 52 bits: exact in JSON, and neighbours of two seeds practically never meet.
    return int(digest("seed", *map(str, parts), length=_SEED_DIGITS), 16)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return (mean, low, high): the mean of independent draws in [0, 1], and its interval.

    Answers to one question are no independent draws: their mean is one. Raises ValueError if there
    are fewer than two draws.
    """
    # Wilson's interval for as many draws of 0 and 1 as have this variance of the mean, with
    # Student's quantile. A bootstrap of 24 values near 1 misses the mean from above in an eighth.
    # Equal values say nothing of their variance: then each counts as a draw of 0 or 1.
    n, mean = len(values), fmean(values)
    spread = variance(values) / n
    size = mean * (1 - mean) / spread if spread else n
    z = student_quantile(n - 1, confidence)
    middle = mean + z * z / (2 * size)
    half = z * sqrt(mean * (1 - mean) / size + z * z / (4 * size * size))
    scale = 1 + z * z / size
    return mean, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


@cache
def student_quantile(freedom: int, confidence: float = 0.95) -> float:
    """Return the t with P(|T| < t) = `confidence`; T: Student's, `freedom` degrees of freedom."""
    low, high = 0.0, 1.0
    while _student_within(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return high


def _student_within(t: float, freedom: int) -> float:
    # P(|T| < t): a finite series for whole degrees of freedom.
    angle, odd = atan(t / sqrt(freedom)), freedom % 2
    total, term = 0.0, cos(angle) if odd else 1.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


def lower_bound(values: Sequence[float], confidence: float) -> float:
    """Return the one-sided bootstrap bound of the mean. `values` is not empty."""
    draw, n, mean = random.Random(0), len(values), fsum(values) / len(values)
    # A resample varies by (n - 1) / n too little: without this few values get too narrow bounds.
    wider = sqrt(n / (n - 1)) if n > 1 else 1.0
    means = sorted(fsum(draw.choices(values, k=n)) / n for _ in range(RESAMPLES))
    return mean + (means[int((1 - confidence) * RESAMPLES)] - mean) * wider


def sign_flip_test(effects: Sequence[float]) -> float:
    """Return the one-sided p-value of a paired randomization test of the mean effect.

    It is the share of sign assignments whose mean is at least the observed mean, and 1 if that is
    not above 0. Exact up to 12 effects unequal to 0.
    """
    # If both sides are interchangeable, p <= a happens with probability <= a.
    moved = [effect for effect in effects if effect]
    observed = fsum(moved) * (1 - 1e-9)
    if observed <= 0:
        return 1.0
    hits = total = 0
    for signs in _signs(len(moved)):
        hits += fsum(s * e for s, e in zip(signs, moved, strict=True)) >= observed
        total += 1
    return hits / total


def lowest_p(effects: int) -> float:
    """Return the lowest p-value that `sign_flip_test` can give for so many effects."""
    return 2.0**-effects if effects <= EXACT_UP_TO else 1 / RESAMPLES


def _signs(n: int) -> Iterator[Sequence[int]]:
    if n <= EXACT_UP_TO:
        yield from product((1, -1), repeat=n)
        return
    yield [1] * n  # the observed assignment counts, so that p is never 0
    draw = random.Random(0)
    for _ in range(RESAMPLES - 1):
        yield draw.choices((1, -1), k=n)
