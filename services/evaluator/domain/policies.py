"""The rules that decide from paired scores of a candidate and of the head. Each fails closed: no evidence is never a tie that passes.

Pairs are task means. The exact one-sided sign test asks how likely so many wins are where wins and losses are equally likely, ties
left out: 5 to 0 gives p = 1/32, 4 to 0 gives 1/16, so that fewer than five tasks can never reach 95 %.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, fsum

from reefcommon.events import Policy, TaskResult, Verdict

BOOTSTRAP_DRAWS = 2000
BOOTSTRAP_SEED = 0
MIN_VALID_PAIRS = 5
EQUAL_WITHIN = 1e-9


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy and its knobs. `confidence` in (0.5, 1); `min_effect` in units of the score."""

    policy: Policy
    min_win_margin: int = 0
    confidence: float = 0.95
    min_effect: float = 0.0


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule made of the evidence. Scores are means over the tasks."""

    verdict: Verdict
    reason: str
    candidate_score: float | None = None
    head_score: float | None = None
    wins: int = 0
    losses: int = 0
    ties: int = 0
    p_value: float | None = None


def sign_test(wins: int, losses: int) -> float:
    """P(at least `wins` of wins + losses), were both equally likely. 1.0 where there is neither."""
    n = wins + losses
    return float(sum(comb(n, k) for k in range(wins, n + 1)) / 2**n)


def bootstrap_lower(effects: Sequence[float], confidence: float) -> float:
    """Lower bound of the mean effect: the (1 - confidence) quantile of the means of 2000 resamples, with a fixed seed."""
    draw = random.Random(BOOTSTRAP_SEED)
    n = len(effects)
    means = sorted(fsum(draw.choices(effects, k=n)) / n for _ in range(BOOTSTRAP_DRAWS))
    return means[int((1 - confidence) * BOOTSTRAP_DRAWS)]


def rule(tasks: Sequence[TaskResult], law: Rule) -> Ruling:
    """Decide. A side that could not be run, or no task at all, is `evaluation_failed` under every policy."""
    pairs = [(task.candidate, task.head) for task in tasks]
    broken = sum(1 for candidate, head in pairs if candidate is None or head is None)
    if not pairs or broken:
        return Ruling(
            "evaluation_failed",
            f"{broken} of {len(pairs)} tasks could not be run" if pairs else "no task was run",
        )
    effects = [
        candidate - head for candidate, head in pairs if candidate is not None and head is not None
    ]
    wins = sum(1 for effect in effects if effect > EQUAL_WITHIN)
    losses = sum(1 for effect in effects if effect < -EQUAL_WITHIN)
    selected, reason = _decide(effects, wins, losses, law)
    return Ruling(
        verdict="select" if selected else "reject",
        reason=reason,
        candidate_score=fsum(candidate for candidate, _ in pairs if candidate is not None)
        / len(pairs),
        head_score=fsum(head for _, head in pairs if head is not None) / len(pairs),
        wins=wins,
        losses=losses,
        ties=len(effects) - wins - losses,
        p_value=sign_test(wins, losses),
    )


def _decide(effects: Sequence[float], wins: int, losses: int, law: Rule) -> tuple[bool, str]:
    mean = fsum(effects) / len(effects)
    ties = len(effects) - wins - losses
    count = ", ".join(
        (
            _counted(wins, "win", "wins"),
            _counted(losses, "loss", "losses"),
            _counted(ties, "tie", "ties"),
        )
    )
    if law.policy == "always":
        return True, f"always: asked for by name; it loads and answers; {count}"
    if law.policy == "no_regression":
        return (
            losses <= wins and mean >= -EQUAL_WITHIN,
            f"{count}, mean difference {mean:+.4g}; no more losses than wins, no lower mean",
        )
    if law.policy == "score_comparison":
        return (
            wins - losses > law.min_win_margin,
            f"{count}; wins - losses must be greater than {law.min_win_margin}",
        )
    p = sign_test(wins, losses)
    lower = bootstrap_lower(effects, law.confidence)
    passed = p <= 1 - law.confidence and lower > law.min_effect and len(effects) >= MIN_VALID_PAIRS
    return passed, (
        f"{count}; sign test p = {p:.4f} (at most {1 - law.confidence:.4g}), mean difference at least {lower:+.4g} "
        f"(more than {law.min_effect:g}), {_counted(len(effects), 'pair', 'pairs')} (at least {MIN_VALID_PAIRS})"
    )


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
