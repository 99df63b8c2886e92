"""The rules that decide from paired scores."""

# A pair is a task, or a held-out sample. Every rule fails closed: a pair that could not be run is
# never a tie that passes, and only `always` and `floor` take a candidate with a lower mean.

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, pi
from typing import Literal

from reefcommon.config_sections import ErrorPer
from reefcommon.evaluation import MIN_TASKS
from reefcommon.events import Policy, TaskResult, Verdict
from reefcommon.statistics import lower_bound, lowest_p, sign_flip_test

Strength = Literal["strong", "weak", "none"]

EQUAL_WITHIN = 1e-9
TEST = "paired sign-flip"
STRONG_P, WEAK_P = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy and its knobs. `confidence` in (0.5, 1); `min_effect` in units of the score.

    `look` counts the comparisons with one head, from 1.
    """

    policy: Policy
    min_win_margin: int = 0
    confidence: float = 0.9
    min_effect: float = 0.0
    min_pairs: int = MIN_TASKS
    error_per: ErrorPer = "comparison"
    look: int = 1
    floor_score: float = 0.0

    @property
    def alpha(self) -> float:
        """The level of the test. Over all looks at a head it sums up to 1 - confidence at most."""
        share = 6 / (pi * self.look) ** 2 if self.error_per == "head" else 1.0
        return (1 - self.confidence) * share

    def unreachable(self, pairs: int) -> str:
        """Return why so many pairs never pass the test; "" if they can."""
        if (lowest := lowest_p(pairs)) <= self.alpha:
            return ""
        best = f"{_counted(pairs, 'pair')} give p = {lowest:.4g} at best"
        return f"{best}, p <= {self.alpha:.4g} is needed"


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
        if self.p_value <= STRONG_P:
            return "strong"
        return "weak" if self.p_value <= WEAK_P else "none"

    @property
    def counts(self) -> str:
        losses = _counted(self.losses, "loss", "losses")
        return f"{_counted(self.wins, 'win')}, {losses}, {_counted(self.ties, 'tie')}"


@dataclass(frozen=True, slots=True)
class Ruling:
    """A rule's decision. `comparison` is None if the pairs could not be run."""

    verdict: Verdict
    reason: str
    comparison: Comparison | None = None


def compare(tasks: Sequence[TaskResult], rule: Rule) -> Comparison | None:
    """Compare both sides. None if there is no pair, or a pair lacks a score.

    The p-value is that of a mean difference of at most `rule.min_effect`.
    """
    run = [(t.candidate, t.head) for t in tasks if t.candidate is not None and t.head is not None]
    if not run or len(run) < len(tasks):
        return None
    effects = [_rounded(candidate - head) for candidate, head in run]
    wins = sum(effect > 0 for effect in effects)
    losses = sum(effect < 0 for effect in effects)
    return Comparison(
        candidate_score=fsum(candidate for candidate, _ in run) / len(run),
        head_score=fsum(head for _, head in run) / len(run),
        wins=wins,
        losses=losses,
        ties=len(run) - wins - losses,
        mean=fsum(effects) / len(run),
        p_value=sign_flip_test([_rounded(effect - rule.min_effect) for effect in effects]),
        confidence_low=lower_bound(effects, rule.confidence),
    )


def decide(tasks: Sequence[TaskResult], rule: Rule) -> Ruling:
    """Decide. Under every policy a pair that could not be run gives `evaluation_failed`."""
    comparison = compare(tasks, rule)
    if comparison is None:
        broken = sum(task.candidate is None or task.head is None for task in tasks)
        words = f"{broken} of {len(tasks)} tasks could not be run" if tasks else "no task was run"
        return Ruling("evaluation_failed", words)
    selected, condition = _passes(comparison, rule)
    if rule.policy != "always" and comparison.pairs < rule.min_pairs:
        selected = False
        condition = f"{_counted(comparison.pairs, 'pair')}, at least {rule.min_pairs} are needed"
    reason = f"{comparison.counts}; mean difference {comparison.mean:+.4g}; {condition}"
    return Ruling("select" if selected else "reject", reason, comparison)


def _passes(comparison: Comparison, rule: Rule) -> tuple[bool, str]:
    """Return whether the rule selects, and its condition in words."""
    if rule.policy == "always":
        return True, "always: asked for by name; it loads and answers"
    if rule.policy == "floor":
        own = f"needs a mean of at least {rule.floor_score:g}; the head's does not count"
        return comparison.candidate_score >= rule.floor_score, own
    if rule.policy == "score_comparison":
        ahead = comparison.wins - comparison.losses > rule.min_win_margin and comparison.mean > 0
        return ahead, f"needs wins - losses > {rule.min_win_margin} and a higher mean"
    if rule.policy == "strictly_better":
        unproven = "chance is not ruled out"
        needed = f"needs a mean difference above {rule.min_effect:g}; {unproven}"
        return comparison.mean > rule.min_effect, needed
    low, p = comparison.confidence_low, comparison.p_value
    look = f", look {rule.look} at this head" if rule.look > 1 else ""
    never = rule.unreachable(comparison.pairs)
    condition = (
        f"a mean difference above {rule.min_effect:g} with p <= {rule.alpha:.4g} "
        f"(p = {p:.4f}, at least {low:+.4g}{look}){'; ' if never else ''}{never}"
    )
    shown = p <= rule.alpha and low > rule.min_effect
    if rule.policy == "no_regression":
        return comparison.losses == 0 or shown, f"needs no loss, or {condition}"
    return shown, f"needs {condition}"


def _rounded(effect: float) -> float:
    # Differences of rounding are ties for every statistic, or they would decide the test.
    return effect if abs(effect) > EQUAL_WITHIN else 0.0


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
