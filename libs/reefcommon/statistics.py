"""Intervals and tests for measured scores, and independent seeds. All are deterministic."""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from math import fsum, sqrt
from statistics import NormalDist

from reefcommon.ids import digest

RESAMPLES = 2000
EXACT_UP_TO = 12
_SEED_DIGITS = 13


def independent_seed(*parts: object) -> int:
    """Return a seed in [0, 2**52). If a part differs, the seed is unrelated."""
    # 52 bits: exact in JSON, and neighbours of two seeds practically never meet.
    return int(digest("seed", *map(str, parts), length=_SEED_DIGITS), 16)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return (mean, low, high) of independent draws: the mean and its confidence interval.

    Draws of 0 and 1 get Wilson's interval, others a bootstrap. Raises ValueError if empty.
    """
    if not values:
        msg = "an interval needs at least one value"
        raise ValueError(msg)
    mean = fsum(values) / len(values)
    if all(value in (0, 1) for value in values):
        return mean, *_wilson(mean, len(values), confidence)
    tail = (1 - confidence) / 2
    means = _bootstrap_means(values)
    return mean, means[int(tail * RESAMPLES)], means[-int(tail * RESAMPLES) - 1]


def lower_bound(values: Sequence[float], confidence: float) -> float:
    """Return the one-sided bootstrap bound of the mean. `values` is not empty."""
    return _bootstrap_means(values)[int((1 - confidence) * RESAMPLES)]


def sign_flip_test(effects: Sequence[float]) -> float:
    """Return the one-sided p-value of a paired randomization test of the mean effect.

    It is the share of sign assignments whose mean is at least the observed mean. Exact up to 12
    effects unequal to 0.
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


def _wilson(mean: float, n: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(1 - (1 - confidence) / 2)
    middle = mean + z * z / (2 * n)
    half = z * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def _bootstrap_means(values: Sequence[float]) -> list[float]:
    draw = random.Random(0)
    n = len(values)
    mean = fsum(values) / n
    # A resample varies by (n - 1) / n too little: without this few values get too narrow bounds.
    wider = sqrt(n / (n - 1)) if n > 1 else 1.0
    return sorted(
        mean + (fsum(draw.choices(values, k=n)) / n - mean) * wider for _ in range(RESAMPLES)
    )
