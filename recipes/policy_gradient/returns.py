"""From rewards to advantages. Pure functions over plain numbers, so that each can be checked by hand."""

import math
from collections.abc import Sequence


def length_adaptive_lambda(actions: int, alpha: float) -> float:
    """lambda = clip(1 - 1 / (alpha * actions), 0, 1): the longer the rollout, the closer to Monte Carlo (arXiv 2607.07508)."""
    return min(max(1.0 - 1.0 / (alpha * actions), 0.0), 1.0) if actions else 0.0


def skip_observation_gae(
    mask: Sequence[int], values: Sequence[float], reward: float, *, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Generalised advantage estimation over action tokens only; `reward` falls on the last of them. Returns (advantages, returns).

    Observation tokens (mask 0) get 0 in both, and are stepped over: the next value of an action is that of the next *action*, so the
    critic never has to predict what the environment will say.
    """
    advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
    next_value = running = 0.0
    pending = reward
    for t in range(len(mask) - 1, -1, -1):
        if not mask[t]:
            continue
        delta = pending + gamma * next_value - values[t]
        running = delta + gamma * lam * running
        advantages[t], returns[t] = running, running + values[t]
        next_value, pending = values[t], 0.0
    return advantages, returns


def group_advantages(rewards: Sequence[float]) -> list[float] | None:
    """(R - mean) / std inside one group, with the population's deviation; None where all rewards are equal (no gradient in it)."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    return None if deviation < 1e-9 else [(r - mean) / deviation for r in rewards]


def explained_variance(values: Sequence[float], returns: Sequence[float]) -> float:
    """1 - Var(returns - values) / Var(returns); 0 where the returns do not vary."""
    total = _variance(returns)
    return (
        0.0
        if total < 1e-12
        else 1.0 - _variance([r - v for r, v in zip(returns, values, strict=True)]) / total
    )


def _variance(numbers: Sequence[float]) -> float:
    if not numbers:
        return 0.0
    mean = sum(numbers) / len(numbers)
    return sum((x - mean) ** 2 for x in numbers) / len(numbers)
