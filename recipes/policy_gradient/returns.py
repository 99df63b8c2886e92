"""From rewards to advantages: pure functions over plain numbers."""

import math
from collections.abc import Sequence


def length_adaptive_lambda(actions: int, alpha: float) -> float:
    return min(max(1.0 - 1.0 / (alpha * actions), 0.0), 1.0) if actions else 0.0


def skip_observation_gae(
    mask: Sequence[int], values: Sequence[float], reward: float, *, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Estimate generalised advantages over action tokens; `reward` falls on the last.

    Returns (advantages, returns), both 0 on observation tokens (mask 0).
    """
    advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
    next_value = running = 0.0
    pending = reward
    for t in range(len(mask) - 1, -1, -1):
        # The next value of an action is that of the next *action*: the critic never has to
        # predict an observation.
        if not mask[t]:
            continue
        delta = pending + gamma * next_value - values[t]
        running = delta + gamma * lam * running
        advantages[t], returns[t] = running, running + values[t]
        next_value, pending = values[t], 0.0
    return advantages, returns


def group_advantages(rewards: Sequence[float]) -> list[float] | None:
    """Return (R - mean) / std of a group, or None if all rewards are equal."""
    if len(set(rewards)) < 2:
        return None
    n = len(rewards)
    # Divided before the sum, and hypot scales: neither overflows.
    mean = sum(reward / n for reward in rewards)
    deviation = math.hypot(*(reward - mean for reward in rewards)) / math.sqrt(n)
    return None if deviation < 1e-9 else [(reward - mean) / deviation for reward in rewards]


def explained_variance(values: Sequence[float], returns: Sequence[float]) -> float:
    """Return 1 - Var(returns - values) / Var(returns); 0 if the returns do not vary."""
    total = _variance(returns)
    rest = _variance([r - v for r, v in zip(returns, values, strict=True)])
    return 1.0 - rest / total if total >= 1e-12 else 0.0


def _variance(numbers: Sequence[float]) -> float:
    if not numbers:
        return 0.0
    mean = sum(numbers) / len(numbers)
    return sum((x - mean) ** 2 for x in numbers) / len(numbers)
