"""OpenClaw-RL: the signal of a turn, its refusals, and what a judge's failures mean."""

import asyncio

import pytest

from recipes.openclaw_rl.recipe import OpenClawRLRecipe
from reefcommon.errors import BadConfig
from reefcommon.events import Sampling
from reefcommon.ids import LoadId
from reefcommon.recipe_context import BudgetSpent, ModelFailed, Reply
from reefcommon.recipe_loading import load_recipe
from tests.recipes.turns import AWAY, HINT, NO_HINT, Context, Judge, turn

RECIPE = "recipes.openclaw_rl.recipe:OpenClawRLRecipe"


def recipe(**knobs) -> OpenClawRLRecipe:
    made = load_recipe(RECIPE, {"batch_size": 2, **knobs})
    assert isinstance(made, OpenClawRLRecipe)
    return made


def signal(judge: Judge, unit=None, **knobs):
    return asyncio.run(recipe(**knobs).signal(unit or turn(), Context(judge)))


def judge(vote: int, hint: str) -> Judge:
    return Judge(lambda purpose, _n: rf"\boxed{{{vote}}}" if purpose == "vote" else hint)


@pytest.mark.parametrize("vote", [1, -1])
def test_row_one_a_vote_and_a_hint_train_both_terms(vote):
    found = signal(judge(vote, HINT))
    assert (found.score, found.words) == (vote, "Greet the user with Hello first.")
    assert found.teacher[-1]["content"].startswith("I am Ada.\n\n[user's hint / instruction]\n")
    assert len(found.teacher) == 1, "the answer is not in the teacher's prompt"
    assert found.labels["row"] == "hint and vote"


def test_row_two_a_hint_without_a_vote_trains_by_distillation():
    found = signal(judge(0, HINT))
    assert (found.score, found.labels["row"]) == (0.0, "hint")
    assert found.teacher


@pytest.mark.parametrize("anchor", [False, True])
def test_row_three_a_vote_without_a_hint_has_no_teacher_but_an_anchor(anchor):
    found = signal(judge(-1, NO_HINT), anchor=anchor)
    assert (found.score, found.words, found.labels["row"]) == (-1.0, "", "vote")
    assert found.teacher == (turn().messages[:1] if anchor else ())


def test_row_four_neither_a_vote_nor_a_hint_never_trains():
    assert signal(judge(0, NO_HINT)) is None


def test_a_tie_is_no_vote():
    votes = Judge(lambda purpose, n: rf"\boxed{{{(1, -1)[n]}}}" if purpose == "vote" else HINT)
    found = signal(votes, judge_votes=2)
    assert (found.score, found.labels["votes"]) == (0.0, "+1 -1")


def test_a_failed_call_is_a_failed_vote():
    votes = Judge(
        lambda purpose, n: AWAY if n < 2 else HINT if purpose == "hint" else r"\boxed{-1}"
    )
    found = signal(votes)
    assert (found.score, found.labels["votes"], bool(found.teacher)) == (-1.0, "- - -1", True)


def test_if_all_votes_failed_the_turn_is_tried_again():
    with pytest.raises(ModelFailed):
        signal(Judge(lambda _purpose, _n: AWAY))


def test_rubbish_is_an_answer_and_refuses_the_turn():
    assert signal(Judge(lambda _purpose, _n: "I like \x00 turtles {")) is None


def test_an_answer_that_was_cut_off_is_a_failed_vote():
    def said(_purpose: str, number: int) -> Reply:
        text = rf"If it was right I say \boxed{{1}}. {HINT}" if number else r"\boxed{-1}"
        return Reply(text, finish_reason="length" if number else "stop")

    found = signal(Judge(said))
    assert (found.labels["votes"], found.labels["row"]) == ("-1 - -", "vote")


@pytest.mark.parametrize("sampling", [{"top_p": 0.9}, {"presence_penalty": 1.0}])
def test_no_judge_is_asked_about_a_turn_that_the_recipe_refuses(sampling):
    asked, unit = judge(1, HINT), turn(sampling=(Sampling(**sampling),))
    found = unit.model_copy(update={"signal": signal(asked, unit)})
    ((_, reason, _),) = recipe().decide([found], LoadId("run", 5)).refused
    assert (reason, asked.asked) == (f"truncated_sampling: {next(iter(sampling))}", [])


def test_a_spent_budget_is_no_vote():
    spent = BudgetSpent("used up")
    with pytest.raises(BudgetSpent):
        signal(Judge(lambda _purpose, n: spent if n else r"\boxed{1}"))


@pytest.mark.parametrize("ended", ["closed", "idle"])
def test_the_last_turn_of_a_session_never_trains(ended):
    asked = judge(1, HINT)
    assert signal(asked, turn(ended=ended, next_messages=())) is None
    assert not asked.asked, "no judge is paid for it"


def test_a_turn_without_tokens_asks_no_judge():
    asked = judge(1, HINT)
    assert signal(asked, turn(untrainable="no_tokens")) is None
    assert not asked.asked


def test_a_tool_result_is_a_next_state():
    result = {"role": "tool", "content": "3 files"}
    asked = judge(1, NO_HINT)
    found = signal(asked, turn(next_messages=(result,)))
    assert found.labels["next_role"] == "tool"
    assert all('role="tool"' in messages[-1]["content"] for _, messages, _ in asked.asked)


@pytest.mark.parametrize(
    ("objective", "purposes"),
    [("binary", {"vote"}), ("opd", {"hint"}), ("combine", {"vote", "hint"})],
)
def test_an_objective_asks_for_no_more_than_it_uses(objective, purposes):
    asked = judge(-1, HINT)
    found = signal(asked, objective=objective)
    assert {purpose for purpose, *_ in asked.asked} == purposes
    assert bool(found.teacher) == (objective != "binary")
    assert found.score == (0.0 if objective == "opd" else -1.0)
    assert signal(judge(0, NO_HINT), objective=objective) is None


def test_votes_are_told_apart_and_sampled_at_the_temperature():
    asked = judge(1, HINT)
    signal(asked, objective="binary", judge_votes=3)
    assert [params["seed"] for *_, params in asked.asked] == [0, 1, 2]
    assert {params["temperature"] for *_, params in asked.asked} == {0.6}


def test_a_batch_is_the_oldest_fresh_turns():
    made = recipe(max_staleness=1)
    signals = [asyncio.run(made.signal(turn(n), Context(judge(-1, HINT)))) for n in range(3)]
    units = [turn(n, signal=said) for n, said in enumerate(signals)]
    decision = made.decide(units, LoadId("run", 6))
    assert [unit.event_id for unit in decision.batch] == ["unt-0", "unt-1"]
    assert made.decide(units[:1], LoadId("run", 6)).batch == ()
    late = made.decide(units, LoadId("run", 9))
    assert [(reason, lag) for _, reason, lag in late.refused] == [("stale", 4)] * 3


def test_an_unknown_objective_is_refused():
    with pytest.raises(BadConfig, match="objective"):
        recipe(objective="both")
