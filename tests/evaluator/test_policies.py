"""The rules that decide, what a task is, and what held-out experience says: all pure."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.sao.recipe import SAORecipe
from reefcommon.config import parse
from reefcommon.evaluation import choose, is_held_out
from reefcommon.events import SampleReady, TaskResult
from reefcommon.recipe import EvaluationPlan
from services.evaluator.domain.policies import Rule, bootstrap_lower, rule, sign_test
from services.evaluator.domain.replay import (
    HeldOut,
    advantages,
    held_out,
    lacking,
    mean_logprob,
    pair,
)
from services.evaluator.domain.tasks import BadScore, BadTask, as_score, as_task, seed_of

POLICIES = ("score_comparison", "paired_confidence", "no_regression", "always")


def results(*pairs: tuple[float | None, float | None]) -> list[TaskResult]:
    return [
        TaskResult(task=str(i), candidate=candidate, head=head)
        for i, (candidate, head) in enumerate(pairs)
    ]


def won(wins: int, losses: int, ties: int = 0) -> list[TaskResult]:
    return results(*[(1.0, 0.0)] * wins, *[(0.0, 1.0)] * losses, *[(0.5, 0.5)] * ties)


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (5, 0, 0.03125),
        (4, 0, 0.0625),
        (7, 1, 0.0352),
        (9, 2, 0.0327),
        (0, 0, 1.0),
        (0, 5, 1.0),
        (3, 0, 0.125),
    ],
)
def test_the_sizes_that_a_gate_needs(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p, abs=1e-4)


@pytest.mark.parametrize(
    ("wins", "losses", "ties", "verdict"),
    [
        (5, 0, 0, "select"),
        (4, 0, 0, "reject"),
        (4, 0, 9, "reject"),
        (7, 1, 0, "select"),
        (6, 1, 0, "reject"),
        (0, 5, 0, "reject"),
    ],
)
def test_paired_confidence(wins: int, losses: int, ties: int, verdict: str) -> None:
    ruling = rule(won(wins, losses, ties), Rule("paired_confidence"))
    assert ruling.verdict == verdict, ruling.reason
    assert (ruling.wins, ruling.losses, ruling.ties) == (wins, losses, ties)


def test_paired_confidence_wants_an_effect_too() -> None:
    tiny = results(*[(0.501, 0.5)] * 8)
    assert rule(tiny, Rule("paired_confidence")).verdict == "select"
    assert rule(tiny, Rule("paired_confidence", min_effect=0.01)).verdict == "reject"


def test_paired_confidence_is_not_fooled_by_one_great_loss() -> None:
    """Eight small wins and one loss pass the sign test (p = 0.0195); the mean does not."""
    ruling = rule(results(*[(0.51, 0.5)] * 8, (0.0, 1.0)), Rule("paired_confidence"))
    assert ruling.p_value == pytest.approx(0.0195, abs=1e-3)
    assert ruling.verdict == "reject"


@pytest.mark.parametrize(
    ("wins", "losses", "margin", "verdict"),
    [(1, 0, 0, "select"), (1, 1, 0, "reject"), (0, 0, 0, "reject"), (3, 1, 2, "reject")],
)
def test_score_comparison(wins: int, losses: int, margin: int, verdict: str) -> None:
    assert (
        rule(won(wins, losses, 3), Rule("score_comparison", min_win_margin=margin)).verdict
        == verdict
    )


def test_the_reason_counts_one_and_many() -> None:
    assert rule(won(1, 0, 2), Rule("score_comparison")).reason.startswith(
        "1 win, 0 losses, 2 ties; "
    )
    assert rule(won(2, 1, 1), Rule("no_regression")).reason.startswith("2 wins, 1 loss, 1 tie, ")
    assert rule(won(1, 0), Rule("paired_confidence")).reason.endswith("1 pair (at least 5)")


def test_no_regression() -> None:
    law = Rule("no_regression")
    assert rule(won(0, 0, 4), law).verdict == "select"
    assert rule(won(1, 2, 4), law).verdict == "reject"
    assert rule(results((0.6, 0.5), (0.6, 0.5), (0.0, 1.0)), law).verdict == "reject", (
        "more wins, but a lower mean"
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "tasks",
    [[], results((None, None)), results((1.0, 0.0), (None, 0.0)), results((1.0, 0.0), (1.0, None))],
)
def test_no_evidence_is_never_a_tie_that_passes(policy: str, tasks: list[TaskResult]) -> None:
    """T6: whatever the policy, what could not be run has failed."""
    ruling = rule(tasks, Rule(policy))
    assert ruling.verdict == "evaluation_failed"
    assert ruling.candidate_score is None


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=30),
    st.sampled_from(POLICIES[:3]),
)
def test_candidate_and_head_exchanged_never_both_win_clearly(
    pairs: list[tuple[float, float]], policy: str
) -> None:
    ours = rule(results(*pairs), Rule(policy))
    theirs = rule(results(*[(head, candidate) for candidate, head in pairs]), Rule(policy))
    assert (ours.wins, ours.losses, ours.ties) == (theirs.losses, theirs.wins, theirs.ties)
    if policy != "no_regression":
        assert "reject" in (ours.verdict, theirs.verdict)


def test_the_bootstrap_is_the_same_every_time() -> None:
    effects = [0.1, 0.4, -0.2, 0.3, 0.2, 0.5]
    assert bootstrap_lower(effects, 0.95) == bootstrap_lower(effects, 0.95)
    assert min(effects) <= bootstrap_lower(effects, 0.95) <= sum(effects) / len(effects)


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
    assert [as_score(value) for value in (1, 0.5, True, False, -3)] == [1.0, 0.5, 1.0, 0.0, -3.0]
    for wrong in (None, "1", math.nan, math.inf, [1]):
        with pytest.raises(BadScore, match="not a finite number"):
            as_score(wrong)


def test_both_sides_of_a_pair_share_a_seed_and_pairs_do_not() -> None:
    seeds = {seed_of(candidate, task) for candidate in ("a", "b") for task in ("t1", "t2")}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)
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


def evidence(*scores: float) -> list[HeldOut]:
    return [
        HeldOut(sample_id=f"s{i}", score=score, tokens=(1, 2, 3), prompt_length=1, loss_mask=(1, 1))
        for i, score in enumerate(scores)
    ]


def test_when_there_is_enough_to_judge_by() -> None:
    assert "0 held-out samples differ" in lacking([])
    assert "0 held-out samples differ" in lacking(evidence(*[1.0] * 20)), "equal scores say nothing"
    assert "4 held-out samples differ" in lacking(evidence(0, 1, 0, 1))
    assert lacking(evidence(0, 1, 0, 1, 1)) == ""
    assert sum(advantage for _, advantage in advantages(evidence(0, 1, 0, 1, 1))) == pytest.approx(
        0
    )


def test_the_mean_is_over_sampled_tokens_alone() -> None:
    kept = held_out(sample())
    assert kept is not None
    # prompt_logprobs[i] is that of token i + 1; the response is tokens 2, 3, 4, of which 3 came from the environment.
    assert mean_logprob(kept, [-9.0, -1.0, -7.0, -3.0]) == pytest.approx(-2.0)


@pytest.mark.parametrize(
    ("advantage", "ours", "heads", "wins"),
    [(0.5, -1.0, -2.0, True), (-0.5, -1.0, -2.0, False), (-0.5, -3.0, -2.0, True)],
)
def test_likelihood_must_move_with_the_advantage(
    advantage: float, ours: float, heads: float, wins: bool
) -> None:
    result = pair(evidence(1.0)[0], advantage, ours, heads)
    assert result.candidate is not None
    assert result.head is not None
    assert (result.candidate > result.head) is wins


class Careful(SAORecipe):
    """A recipe with a plan of its own."""

    name = "careful"

    def evaluation(self) -> EvaluationPlan:
        return EvaluationPlan("replay", "no_regression")


def test_who_says_how_it_is_judged() -> None:
    dotted = f"{__name__}:Careful"
    plain = parse(f"reef:\n  recipe: {dotted}\n")
    assert (
        choose(plain, "default", dotted)
        == choose(plain, "default", "careful")
        == EvaluationPlan("replay", "no_regression")
    )
    assert choose(plain, "default", "somebody's") == EvaluationPlan("replay", "score_comparison")
    tasks = parse(f"reef:\n  recipe: {dotted}\nevaluation: {{tasks: [hi], score: 'math:fsum'}}\n")
    assert choose(tasks, "default", dotted) == EvaluationPlan("tasks", "no_regression")
    own = parse(
        f"reef:\n  recipe: {dotted}\nevaluation: {{tasks: [hi], score: 'math:fsum', policy: paired_confidence}}\n"
    )
    assert choose(own, "default", dotted) == EvaluationPlan("tasks", "paired_confidence")
