"""From the rewards of a grid to advantages: pure functions over plain numbers."""

import math
from collections.abc import Mapping, Sequence

MOST_BETA = 1e6
BISECTIONS = 60
TARGET_KL = math.log(2)
TINY = 1e-12


def tilted(rewards: Sequence[float], beta: float) -> list[float]:
    """Return exp(beta * (r - max r)) of each reward."""
    top = max(rewards)
    return [math.exp(beta * (reward - top)) for reward in rewards]


def kl_to_uniform(rewards: Sequence[float], beta: float) -> float:
    """Return KL(softmax(beta * r) || uniform) in nats."""
    weights = tilted(rewards, beta)
    total, count = math.fsum(weights), len(weights)
    shares = (weight / total for weight in weights)
    return math.fsum(q * math.log(q * count) for q in shares if q > 0)


def adaptive_beta(rewards: Sequence[float]) -> float:
    """Return the beta at which the tilted group is ln 2 away from uniform, at most 1e6."""
    high = 1.0
    while kl_to_uniform(rewards, high) < TARGET_KL:
        if high >= MOST_BETA:
            return high  # too many equal best rewards: no beta reaches it
        high = min(2 * high, MOST_BETA)
    low = 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if kl_to_uniform(rewards, middle) < TARGET_KL:
            low = middle
        else:
            high = middle
    return high


def entropic(rewards: Sequence[float], beta: float | None = None) -> list[float]:
    """Return e_i / (mean of the other e) - 1, e = exp(beta * r). `beta` None: adaptive."""
    # The mean reward would reward a safe policy. This is the gradient of log E[exp(beta * R)],
    # which grows with the best of many draws; the group's others are the baseline.
    weights = tilted(rewards, adaptive_beta(rewards) if beta is None else beta)
    total, others = math.fsum(weights), len(weights) - 1
    return [e / (max(total - e, 0.0) / others + TINY) - 1.0 for e in weights]


def mean_baseline(rewards: Sequence[float]) -> list[float]:
    """Return each reward minus the group's mean: the control arm."""
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def informative(groups: Mapping[int, Sequence[float]]) -> tuple[list[int], bool]:
    """Return the groups that are trained on, in order; True if a constant group is among them.

    Groups of equal rewards are dropped. If all are, the first is kept: a step without a reward's
    gradient, so that the grid is used up by a step as any other.
    """
    varied = [group for group, rewards in sorted(groups.items()) if len(set(rewards)) > 1]
    return (varied, False) if varied else ([min(groups)], True)


def fold_kl(
    advantages: Sequence[float],
    behaviour: Sequence[Sequence[float]],
    base: Sequence[Sequence[float]],
    masks: Sequence[Sequence[int]],
    coefficient: float,
) -> tuple[list[list[float]], float]:
    """Add the pull towards the frozen base to the advantages of each token.

    d = log q - log base on sampled tokens; A_t = A + coefficient * (mean d - d_t) there, and A on
    the others. Returns (advantages, mean d in nats).
    """
    gaps = [
        [q - p if bit else 0.0 for q, p, bit in zip(*row, strict=True)]
        for row in zip(behaviour, base, masks, strict=True)
    ]
    count = sum(map(sum, masks))
    mean = math.fsum(gap for row in gaps for gap in row) / max(count, 1)
    # Centred over the grid: the pull moves mass between tokens, and adds no constant to all.
    folded = [
        [a + coefficient * (mean - gap) * bit for gap, bit in zip(row, mask, strict=True)]
        for a, row, mask in zip(advantages, gaps, masks, strict=True)
    ]
    return folded, mean
