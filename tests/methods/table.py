"""The table of an experiment: a figure for each arm and seed, with the mean's interval."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from reefcommon.statistics import lowest_p, mean_interval, sign_flip_test, student_quantile

Seeds = Mapping[int, Mapping[str, float]]
"""Seed -> figures, each in [0, 1]."""


def parsed(about: str, *, steps: int = 150, rates: Sequence[float] = ()) -> argparse.Namespace:
    """`--seeds 0 1 2`, `--steps N`, and `--rates` if learning rates are tried."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=steps, help="updates of each arm")
    if rates:
        parser.add_argument("--rates", type=float, nargs="+", default=[*rates])
    return parser.parse_args()


def arm(seeds: Seeds) -> dict[str, Any]:
    """Per seed, and each figure's mean with its 95 % interval over the seeds.

    Without an interval: counts, and figures that no seed moves, such as those of the base model.
    """
    names = next(iter(seeds.values()))
    means: dict[str, Any] = {}
    for name in names:
        values = [figures[name] for figures in seeds.values()]
        bounded = len(set(values)) > 1 and all(0 <= value <= 1 for value in values)
        shown = mean_interval(values) if bounded else (fmean(values),)
        means[name] = [round(value, 4) for value in shown]
    per_seed = {
        seed: {name: round(value, 4) for name, value in figures.items()}
        for seed, figures in seeds.items()
    }
    return {"mean [low, high]": means, "seeds": per_seed}


def student_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, ...]:
    """Return (mean, low, high) of independent draws without bounds, such as differences of seeds.

    Raises ValueError if there are fewer than two draws.
    """
    mean, deviation = fmean(values), stdev(values)
    half = student_quantile(len(values) - 1, confidence) * deviation / sqrt(len(values))
    return mean, mean - half, mean + half


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """The mean difference of two arms over the same seeds, its 95 % interval, and p of `first >`."""
    gaps = [a - b for a, b in zip(first, second, strict=True)]
    shown = student_interval(gaps) if len(gaps) > 1 else (fmean(gaps),)
    return {
        "difference [low, high]": [round(value, 4) for value in shown],
        "p, one-sided": sign_flip_test(gaps),
        "lowest p that so many seeds can give": lowest_p(len(gaps)),
    }


def tell(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def show(table: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(table, indent=1) + "\n")
