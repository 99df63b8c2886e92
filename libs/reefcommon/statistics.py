"""Intervals and tests for measured scores, and independent seeds. All are deterministic."""

import random
from collections.abc import Sequence
from functools import cache
from math import atan, cos, fsum, pi, sin, sqrt
from statistics import fmean, variance

from reefcommon.ids import digest

_RESAMPLES = 2000
_SEED_DIGITS = 13
# Divisible by 1 to 10: scores are often the mean of a few.
_STEPS, _MOST_ADDED = 2520, 200_000_000


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
    means = sorted(fsum(draw.choices(values, k=n)) / n for _ in range(_RESAMPLES))
    return mean + (means[int((1 - confidence) * _RESAMPLES)] - mean) * wider


def sign_flip_test(effects: Sequence[float]) -> float:
    """Return the one-sided p-value of a paired randomization test of the mean effect.

    It is the share of sign assignments whose mean is at least the observed mean, and 1 if that is
    not above 0. All 2^n assignments count; effects are first rounded to 1/2520 of the largest one,
    to fewer steps above 281 effects.
    """
    import numpy as np  # late: most services never test

    # If both sides are interchangeable, p <= a happens with probability <= a, rounded or not.
    moved = [effect for effect in effects if effect]
    steps = max(1, min(_STEPS, _MOST_ADDED // max(len(moved), 1) ** 2))
    largest = max(map(abs, moved), default=1.0)
    sizes = [round(effect * steps / largest) for effect in moved]
    if sum(sizes) <= 0:
        return 1.0
    # chances[k]: of the sum k of all positive effects, if each sign is as likely.
    chances, top = np.zeros(sum(map(abs, sizes)) + 1), 0
    chances[0] = 1.0
    for size in sorted(map(abs, sizes)):
        chances[size : size + top + 1] += chances[: top + 1].copy()
        top += size
        chances[: top + 1] /= 2
    return float(chances[sum(size for size in sizes if size > 0) :].sum())


def lowest_p(effects: int) -> float:
    """Return the lowest p-value that `sign_flip_test` can give for so many effects."""
    return 2.0**-effects
