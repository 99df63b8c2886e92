"""Pure parts of the evaluator: rules, tasks, held-out experience."""

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.sao.recipe import SAORecipe
from reefcommon.config import parse
from reefcommon.evaluation import MIN_HELD_OUT, MIN_TASKS, choose, is_held_out
from reefcommon.evaluator import BadScore, BadTask, as_scored, as_task
from reefcommon.events import Policy, SampleReady, TaskResult
from reefcommon.recipe import EvaluationPlan
from services.evaluator.domain.policies import Rule, compare, decide
from services.evaluator.domain.replay import (
    HeldOut,
    advantages,
    held_out,
    lacking,
    mean_logprob,
    scored_pairs,
)
from services.evaluator.episodes import seed_of

POLICIES: tuple[Policy, ...] = ("score_comparison", "paired_confidence", "no_regression", "always")


def results(*pairs: tuple[float | None, float | None]) -> list[TaskResult]:
    return [
        TaskResult(task=str(i), candidate=candidate, head=head)
        for i, (candidate, head) in enumerate(pairs)
    ]


def won(wins: int, losses: int, ties: int = 0) -> list[TaskResult]:
    return results(*[(1.0, 0.0)] * wins, *[(0.0, 1.0)] * losses, *[(0.5, 0.5)] * ties)


@pytest.mark.parametrize(
    ("wins", "losses", "ties", "verdict"),
    [
        (5, 0, 0, "select"),
        (3, 0, 9, "reject"),
        (4, 0, 0, "reject"),
        (7, 1, 0, "select"),
        (6, 1, 0, "select"),
        (3, 2, 0, "reject"),
        (0, 5, 0, "reject"),
    ],
)
def test_paired_confidence(wins: int, losses: int, ties: int, verdict: str) -> None:
    ruling = decide(won(wins, losses, ties), Rule("paired_confidence"))
    assert ruling.verdict == verdict, ruling.reason
    assert ruling.comparison is not None
    found = ruling.comparison
    assert (found.wins, found.losses, found.ties) == (wins, losses, ties)


def test_paired_confidence_needs_an_effect_too() -> None:
    tiny = results(*[(0.501, 0.5)] * 8)
    assert decide(tiny, Rule("paired_confidence")).verdict == "select"
    for effect in (0.001, 0.01):
        assert decide(tiny, Rule("paired_confidence", min_effect=effect)).verdict == "reject"


@pytest.mark.parametrize("policy", ["paired_confidence", "no_regression"])
def test_the_effect_is_part_of_the_test(policy: Policy) -> None:
    """Nine wins of 0.2, one loss: better than equal, and not shown to be better by 0.1."""
    pairs = results(*[(0.7, 0.5)] * 9, (0.4, 0.5))
    equal, shifted = Rule(policy), Rule(policy, min_effect=0.1)
    assert decide(pairs, equal).verdict == "select"
    found = decide(results(*[(0.7, 0.5)] * 6, *[(0.45, 0.5)] * 4), shifted)
    assert found.verdict == "reject"
    assert found.comparison is not None
    assert found.comparison.p_value > 0.1
    assert found.comparison.mean > 0.0999
    assert "above 0.1 with p <= 0.1" in found.reason
    assert decide(pairs, shifted).verdict == "select", "p = 11 / 1024 of the differences to 0.1"


def test_the_budget_of_a_head_is_spent_over_its_candidates() -> None:
    rules = [Rule("paired_confidence", error_per="head", look=look) for look in range(1, 2000)]
    assert sum(rule.alpha for rule in rules) <= 0.1
    assert decide(won(5, 0), rules[0]).verdict == "select"
    late = decide(won(5, 0), rules[1])
    assert late.verdict == "reject"
    assert "p <= 0.0152 (p = 0.0312, at least +1, look 2 at this head)" in late.reason
    assert late.reason.endswith("5 pairs give p = 0.03125 at best, p <= 0.0152 is needed")
    assert decide(won(7, 0), rules[1]).verdict == "select"
    plain = decide(won(5, 0), Rule("paired_confidence", look=99))
    assert plain.verdict == "select", "by default each comparison has the whole error"


@pytest.mark.parametrize("policy", POLICIES[:3])
def test_small_wins_do_not_outweigh_one_great_loss(policy: Policy) -> None:
    """Eight wins and one loss pass a sign test (p = 0.0195); the mean is lower all the same."""
    assert decide(results(*[(0.51, 0.5)] * 8, (0.0, 1.0)), Rule(policy)).verdict == "reject"


@pytest.mark.parametrize(
    ("wins", "losses", "margin", "verdict"),
    [(1, 0, 0, "select"), (1, 1, 0, "reject"), (0, 0, 0, "reject"), (3, 1, 2, "reject")],
)
def test_score_comparison(wins: int, losses: int, margin: int, verdict: str) -> None:
    rule = Rule("score_comparison", min_win_margin=margin)
    assert decide(won(wins, losses, 4), rule).verdict == verdict


@pytest.mark.parametrize(
    ("pairs", "verdict", "strength"),
    [
        ([(1.0, 0.0)] * 6, "select", "strong"),
        ([(1.0, 0.0)] * 3 + [(0.0, 1.0)] * 2, "select", "none"),
        ([(0.5, 0.5)] * 6, "reject", "none"),
        ([(0.0, 1.0)] * 3 + [(1.0, 0.0)] * 2, "reject", "none"),
    ],
)
def test_strictly_better_takes_any_higher_mean_and_says_its_worth(
    pairs: list[tuple[float, float]], verdict: str, strength: str
) -> None:
    ruling = decide(results(*pairs), Rule("strictly_better"))
    assert ruling.verdict == verdict
    assert ruling.reason.endswith("needs a mean difference above 0; chance is not ruled out")
    assert ruling.comparison is not None
    assert ruling.comparison.strength == strength
    above = Rule("strictly_better", min_effect=0.3)
    assert decide(results(*[(1.0, 0.0)] * 6), above).verdict == "select"
    assert decide(results(*pairs[1:]), above).verdict == (
        "select" if strength == "strong" else "reject"
    )


def test_the_reason_counts_one_and_many() -> None:
    assert decide(won(1, 0, 2), Rule("score_comparison")).reason.startswith(
        "1 win, 0 losses, 2 ties; "
    )
    assert decide(won(2, 1, 1), Rule("no_regression")).reason.startswith("2 wins, 1 loss, 1 tie; ")
    assert decide(won(1, 0), Rule("paired_confidence")).reason.endswith(
        "1 pair, at least 5 are needed"
    )


def test_no_regression_needs_no_loss_or_a_shown_gain() -> None:
    rule = Rule("no_regression")
    assert decide(won(0, 0, 5), rule).verdict == "select"
    assert decide(won(2, 1, 4), rule).verdict == "reject", "a coin flip"
    assert decide(won(9, 1, 4), rule).verdict == "select"
    assert decide(results(*[(0.6, 0.5)] * 5, (0.0, 1.0)), rule).verdict == "reject"


@pytest.mark.parametrize("policy", POLICIES[:3])
def test_five_samples_at_three_to_two_release_nothing(policy: Policy) -> None:
    pairs = [(-0.215, -0.2153), (-0.2, -0.212), (-0.3, -0.3004), (-0.21, -0.205), (-0.2, -0.199)]
    rule = Rule(policy, min_pairs=MIN_HELD_OUT)
    ruling = decide(results(*pairs), rule)
    assert ruling.verdict == "reject"
    assert ruling.comparison is not None
    assert ruling.comparison.strength == "none"


@pytest.mark.parametrize(
    ("tasks", "strength"),
    [(won(6, 0), "strong"), (won(6, 1), "weak"), (won(6, 3), "none"), (won(4, 0), "none")],
)
def test_the_strength_of_the_evidence_is_said(tasks: list[TaskResult], strength: str) -> None:
    found = compare(tasks, Rule("paired_confidence"))
    assert found is not None
    assert found.strength == strength, found


def equal_answers(draw: random.Random) -> list[TaskResult]:
    """Twelve tasks of different difficulty, four answers of 0 or 1 each, equal on both sides."""
    rates = [draw.random() for _ in range(12)]

    def score(rate: float) -> float:
        return sum(draw.random() < rate for _ in range(4)) / 4

    return results(*[(score(rate), score(rate)) for rate in rates])


def equal_likelihoods(draw: random.Random) -> list[TaskResult]:
    """Twenty held-out samples with rare high scores; the candidate's weights moved at random."""
    scores = [float(draw.random() < 0.2) for _ in range(18)] + [0.0, 1.0]
    mean = sum(scores) / len(scores)
    shift = draw.gauss(0, 0.02)
    return results(
        *[((s - mean) * (-1 + shift + draw.gauss(0, 0.05)), (s - mean) * -1.0) for s in scores]
    )


def equal_clusters(draw: random.Random) -> list[TaskResult]:
    """Twenty prompts with three answers each, whose likelihoods move together."""
    scores = [(prompt, float(draw.random() < 0.3)) for prompt in range(20) for _ in range(3)]
    samples = [
        HeldOut(sample_id=str(i), score=score, tokens=(prompt, 1), prompt_length=1, loss_mask=(1,))
        for i, (prompt, score) in enumerate(scores)
    ]
    moved = [draw.gauss(-1, 0.05) for _ in range(20)]
    ours = {one.sample_id: moved[one.tokens[0]] + draw.gauss(0, 0.03) for one in samples}
    return list(scored_pairs(samples, ours, dict.fromkeys(ours, -1.0)))


@pytest.mark.parametrize(
    ("policy", "null", "pairs"),
    [
        ("no_regression", equal_clusters, MIN_TASKS),
        ("paired_confidence", equal_answers, MIN_TASKS),
        ("no_regression", equal_likelihoods, MIN_HELD_OUT),
    ],
)
def test_the_default_seldom_releases_an_equal_candidate(
    policy: Policy, null: Callable[[random.Random], list[TaskResult]], pairs: int
) -> None:
    """False releases in 200 comparisons of equals: one in ten, which `confidence` asks, or as many more as chance gives in one of a hundred."""
    draw = random.Random(11)
    rule = Rule(policy, min_pairs=pairs)
    released = sum(decide(null(draw), rule).verdict == "select" for _ in range(200))
    assert released <= 0.15 * 200, released


def test_the_default_finds_a_candidate_that_is_better() -> None:
    """From 0.35 to 0.75 on twelve tasks with six answers each: nine of ten are released."""
    draw = random.Random(12)

    def score(rate: float) -> float:
        return sum(draw.random() < rate for _ in range(6)) / 6

    tasks = [results(*[(score(0.75), score(0.35)) for _ in range(12)]) for _ in range(50)]
    released = sum(decide(t, Rule("paired_confidence")).verdict == "select" for t in tasks)
    assert released >= 45


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "tasks",
    [[], results((None, None)), results((1.0, 0.0), (None, 0.0)), results((1.0, 0.0), (1.0, None))],
)
def test_a_pair_that_was_not_run_fails_under_every_policy(
    policy: Policy, tasks: list[TaskResult]
) -> None:
    ruling = decide(tasks, Rule(policy))
    assert ruling.verdict == "evaluation_failed"
    assert ruling.comparison is None


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=5, max_size=15),
    st.sampled_from(POLICIES[:3]),
)
def test_no_head_is_replaced_by_a_lower_mean(
    pairs: list[tuple[float, float]], policy: Policy
) -> None:
    ruling = decide(results(*pairs), Rule(policy))
    found = ruling.comparison
    assert found is not None
    assert ruling.verdict == "reject" or found.candidate_score >= found.head_score - 1e-9


def test_what_is_a_task() -> None:
    assert as_task("Say hi", 3).name == "3: Say hi"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert as_task(messages, 0).messages == tuple(messages)
    task = as_task({"id": "capital", "prompt": "Capital of Kenya?", "answer": "Nairobi"}, 0)
    assert (task.name, task.given["answer"]) == ("capital", "Nairobi")
    for wrong in ("", " ", [], {}, 7, None, [{"content": "no role"}], {"prompt": 3}):
        with pytest.raises(BadTask, match="task 2 must be a prompt"):
            as_task(wrong, 2)


def test_what_is_a_score() -> None:
    assert [as_scored(value).number for value in (1, 0.5, True, False, -3)] == [
        1.0,
        0.5,
        1.0,
        0.0,
        -3.0,
    ]
    others = (np.float32(0.5), np.int64(2), np.bool_(1), Fraction(1, 4))
    assert [as_scored(value).number for value in others] == [0.5, 2.0, 1.0, 0.25]
    for wrong in (None, "1", math.nan, math.inf, [1], np.float32(math.nan), 1j):
        with pytest.raises(BadScore, match="not a finite number"):
            as_scored(wrong)


def test_both_sides_of_a_pair_share_a_seed_and_pairs_do_not() -> None:
    seeds = {seed_of(candidate, task) for candidate in ("a", "b") for task in ("t1", "t2")}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert seed_of("a", "t1") == seed_of("a", "t1")


def test_one_in_five_is_held_out() -> None:
    share = sum(is_held_out(f"smp-{i}") for i in range(20_000)) / 20_000
    assert share == pytest.approx(0.2, abs=0.01)
    assert [is_held_out(f"smp-{i}") for i in range(8)] == [
        is_held_out(f"smp-{i}") for i in range(8)
    ]


def sample(**changes: object) -> SampleReady:
    fields: dict[str, object] = {
        "event_id": "smp-1",
        "at": datetime.now(UTC),
        "scenario": "default",
        "record_ids": ("rec-1",),
        "score": 0.5,
        "tokens": (1, 2, 3, 4, 5),
        "prompt_length": 2,
        "loss_mask": (1, 0, 1),
        "logprobs": (-1.0, 0.0, -1.0),
        "recorded_at": datetime.now(UTC),
        **changes,
    }
    return SampleReady.model_validate(fields)


def test_what_can_be_evidence() -> None:
    kept = held_out(sample())
    assert kept is not None
    assert (kept.sample_id, kept.score, kept.loss_mask) == ("smp-1", 0.5, (1, 0, 1))
    for changes in (
        {"score": None},
        {"untrainable": "no ids"},
        {"loss_mask": (0, 0, 0)},
        {"loss_mask": (1,)},
        {"prompt_length": 0},
    ):
        assert held_out(sample(**changes)) is None, changes


def evidence(*scores: float, prompts: int = 100) -> list[HeldOut]:
    fixed = {"prompt_length": 1, "loss_mask": (1, 1)}
    return [
        HeldOut(sample_id=f"s{i}", score=score, tokens=(i % prompts, 2, 3), **fixed)
        for i, score in enumerate(scores)
    ]


def test_samples_of_one_prompt_are_one_pair() -> None:
    samples = evidence(1, 0, 1, 0, 1, 0, 0, prompts=3)
    heads = {f"s{i}": -1.0 for i in range(7)}
    pairs = scored_pairs(samples, {**heads, "s0": -0.5, "s3": -2.0}, heads)
    assert [pair.task for pair in pairs] == ["s0", "s1", "s2"]
    first = compare(pairs, Rule("no_regression"))
    assert first is not None
    assert (first.wins, first.losses, first.ties) == (1, 0, 2)
    weights = [4 / 7, -3 / 7, -3 / 7]  # s0, s3, s6: score - mean
    moved = (weights[0] * 0.5 + weights[1] * -1.0) / 3
    assert first.mean == pytest.approx(moved / 3)
    missing = scored_pairs(samples, {"s0": -0.5}, heads)
    assert [pair.candidate for pair in missing] == [None] * 3, "a part of a prompt is no pair"


def test_lacking_counts_the_prompts_that_carry_information() -> None:
    assert ": 0 of 5 prompts that it needs" in lacking([], 5)
    assert ": 0 of 5 prompts" in lacking(evidence(*[1.0] * 20), 5), "equal scores"
    assert ": 4 of 5 prompts" in lacking(evidence(0, 1, 0, 1), 5)
    assert ": 4 of 5 prompts" in lacking(evidence(0, 1, 0, 1, 1, 0, prompts=4), 5)
    assert lacking(evidence(0, 1, 0, 1, 1), 5) == ""
    centred = [advantage for _, advantage in advantages(evidence(0, 1, 0, 1, 1))]
    assert sum(centred) == pytest.approx(0)


def test_the_mean_is_over_sampled_tokens_alone() -> None:
    kept = held_out(sample())
    assert kept is not None
    # prompt_logprobs[i] is that of token i + 1; the response is tokens 2, 3, 4, of which the
    # environment wrote 3.
    assert mean_logprob(kept, [-9.0, -1.0, -7.0, -3.0]) == pytest.approx(-2.0)


@pytest.mark.parametrize(
    ("liked", "ours", "heads", "wins"),
    [(True, -1.0, -2.0, True), (False, -1.0, -2.0, False), (False, -3.0, -2.0, True)],
)
def test_likelihood_must_move_with_the_advantage(
    liked: bool, ours: float, heads: float, wins: bool
) -> None:
    samples = evidence(float(liked), float(not liked))
    result = scored_pairs(samples, {"s0": ours}, {"s0": heads})[0]
    assert result.candidate is not None
    assert result.head is not None
    assert (result.candidate > result.head) is wins


class Careful(SAORecipe):
    """A recipe with a plan of its own."""

    name = "careful"

    def evaluation(self) -> EvaluationPlan:
        return EvaluationPlan("replay", "no_regression")


def test_the_plan_that_counts() -> None:
    dotted = f"{__name__}:Careful"
    plain = parse(f"reef:\n  recipe: {dotted}\n")
    for name in (dotted, "careful"):
        plan = choose(plain, "default", name)
        assert (plan.method, plan.policy, plan.min_pairs) == ("replay", "no_regression", 20)
        assert plan.withholds_samples
    unbound = choose(plain, "default", "somebody's")
    assert (unbound.method, unbound.policy) == ("replay", "no_regression")
    tasks = f"reef:\n  recipe: {dotted}\nevaluation: {{tasks: [hi], score: 'math:fsum'"
    plan = choose(parse(tasks + "}"), "default", dotted)
    assert (plan.method, plan.policy, plan.min_pairs) == ("tasks", "no_regression", 5)
    own = parse(tasks + ", policy: score_comparison, min_pairs: 2}")
    plan = choose(own, "default", dotted)
    assert (plan.policy, plan.min_pairs, plan.withholds_samples) == ("score_comparison", 2, False)
    others = choose(parse(tasks + "}"), "default", "somebody's")
    assert others.policy == "paired_confidence"


def test_policy_always_withholds_no_sample() -> None:
    text = "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}\nevaluation: {policy: always}"
    plan = choose(parse(text), "default", "sao")
    assert plan.method == "replay"
    assert not plan.withholds_samples
