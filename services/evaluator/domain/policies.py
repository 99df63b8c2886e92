"""The rules that decide from paired scores."""

# A pair is a task, or a held-out sample. Every rule fails closed: a pair that could not be run is
# never a tie that passes, and only `always` replaces a head by a candidate with a lower mean.

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal

from reefcommon.evaluation import MIN_TASKS
from reefcommon.events import Policy, TaskResult, Verdict
from reefcommon.statistics import lower_bound, sign_flip_test

Strength = Literal["strong", "weak", "none"]

EQUAL_WITHIN = 1e-9
TEST = "paired sign-flip"
STRONG_P, WEAK_P = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy and its knobs. `confidence` in (0.5, 1); `min_effect` in units of the score."""

    policy: Policy
    min_win_margin: int = 0
    confidence: float = 0.9
    min_effect: float = 0.0
    min_pairs: int = MIN_TASKS


@dataclass(frozen=True, slots=True)
class Comparison:
    """The worth of a set of pairs. Scores are means; `confidence_low` bounds their difference."""

    candidate_score: float
    head_score: float
    wins: int
    losses: int
    ties: int
    mean: float
    p_value: float
    confidence_low: float

    @property
    def pairs(self) -> int:
        return self.wins + self.losses + self.ties

    @property
    def strength(self) -> Strength:
        """How well these pairs show that the candidate is better."""
        if self.pairs < MIN_TASKS or self.confidence_low <= 0:
            return "none"
        # A bound at another confidence than 0.95 still needs the test to say so.
        return (
            "strong" if self.p_value <= STRONG_P else "weak" if self.p_value <= WEAK_P else "none"
        )

    @property
    def counts(self) -> str:
        numbers = (
            (self.wins, "win", "wins"),
            (self.losses, "loss", "losses"),
            (self.ties, "tie", "ties"),
        )
        return ", ".join(f"{n} {one if n == 1 else many}" for n, one, many in numbers)


@dataclass(frozen=True, slots=True)
class Ruling:
    """A rule's decision. `comparison` is None if the pairs could not be run."""

    verdict: Verdict
    reason: str
    comparison: Comparison | None = None


def compare(tasks: Sequence[TaskResult], confidence: float) -> Comparison | None:
    """Compare both sides. None if there is no pair, or a pair lacks a score."""
    run = [(t.candidate, t.head) for t in tasks if t.candidate is not None and t.head is not None]
    if not run or len(run) < len(tasks):
        return None
    effects = [candidate - head for candidate, head in run]
    # Differences of rounding are ties for every statistic, or they would decide the test.
    effects = [effect if abs(effect) > EQUAL_WITHIN else 0.0 for effect in effects]
    wins = sum(effect > 0 for effect in effects)
    losses = sum(effect < 0 for effect in effects)
    return Comparison(
        candidate_score=fsum(candidate for candidate, _ in run) / len(run),
        head_score=fsum(head for _, head in run) / len(run),
        wins=wins,
        losses=losses,
        ties=len(run) - wins - losses,
        mean=fsum(effects) / len(run),
        p_value=sign_flip_test(effects),
        confidence_low=lower_bound(effects, confidence),
    )


def decide(tasks: Sequence[TaskResult], rule: Rule) -> Ruling:
    """Decide. Under every policy a pair that could not be run gives `evaluation_failed`."""
    comparison = compare(tasks, rule.confidence)
    if comparison is None:
        broken = sum(task.candidate is None or task.head is None for task in tasks)
        words = f"{broken} of {len(tasks)} tasks could not be run" if tasks else "no task was run"
        return Ruling("evaluation_failed", words)
    selected, condition = _CONDITIONS[rule.policy](comparison, rule)
    if rule.policy != "always" and comparison.pairs < rule.min_pairs:
        selected = False
        condition = f"{_pairs(comparison.pairs)}, at least {rule.min_pairs} are needed"
    reason = f"{comparison.counts}; mean difference {comparison.mean:+.4g}; {condition}"
    return Ruling("select" if selected else "reject", reason, comparison)


def _always(_comparison: Comparison, _rule: Rule) -> tuple[bool, str]:
    return True, "always: asked for by name; it loads and answers"


def _score_comparison(comparison: Comparison, rule: Rule) -> tuple[bool, str]:
    selected = comparison.wins - comparison.losses > rule.min_win_margin and comparison.mean > 0
    return selected, f"needs wins - losses > {rule.min_win_margin} and a higher mean"


def _no_regression(comparison: Comparison, rule: Rule) -> tuple[bool, str]:
    shown, figures = _shown(comparison, rule, 0)
    condition = f"p <= {1 - rule.confidence:.4g} with a mean difference above 0 {figures}"
    return comparison.losses == 0 or shown, f"needs no loss, or {condition}"


def _paired_confidence(comparison: Comparison, rule: Rule) -> tuple[bool, str]:
    shown, figures = _shown(comparison, rule, rule.min_effect)
    effect = f"a mean difference above {rule.min_effect:g} {figures}"
    return shown, f"needs p <= {1 - rule.confidence:.4g} and {effect}"


def _shown(comparison: Comparison, rule: Rule, effect: float) -> tuple[bool, str]:
    shown = comparison.p_value <= 1 - rule.confidence and comparison.confidence_low > effect
    return shown, f"(p = {comparison.p_value:.4f}, at least {comparison.confidence_low:+.4g})"


_CONDITIONS = {
    "always": _always,
    "score_comparison": _score_comparison,
    "no_regression": _no_regression,
    "paired_confidence": _paired_confidence,
}


def _pairs(number: int) -> str:
    return f"{number} pair" if number == 1 else f"{number} pairs"
