"""Best-of: the best answers of complete groups, each once; and it learns."""

import pytest
from pydantic import ValidationError

from recipes.best_of.recipe import BestOfRecipe
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision
from reefcommon.recipe_loading import load_recipe
from tests.recipes.bandit import ALL_LINEAR, tenth, train, write_model
from tests.recipes.samples import sample

HERE = LoadId("run", 5)


def recipe(**knobs):
    defaults = {"batch_size": 6, "group_size": 3, "min_score": 0.5}
    return BestOfRecipe(BestOfRecipe.knobs_type(**(defaults | knobs)))


def answers(prompt, scores, first=0, **changes):
    return [
        sample(first + i, tokens=(1, prompt, 3, 4, 5), score=score, **changes)
        for i, score in enumerate(scores)
    ]


def names(units):
    return [unit.event_id for unit in units]


def test_the_best_of_each_prompt_is_chosen_and_the_others_refused():
    waiting = answers(7, (0.5, 1.0, 0.0)) + answers(8, (0.6, 0.2, 0.6), first=3)
    decision = recipe().decide(waiting, HERE)
    assert names(decision.batch) == ["smp-1", "smp-3"]  # of equal scores the oldest
    assert sorted((unit.event_id, reason) for unit, reason, _ in decision.refused) == [
        (f"smp-{i}", "not_among_the_best") for i in (0, 2, 4, 5)
    ]


def test_until_enough_groups_are_complete_all_wait():
    waiting = answers(7, (0.5, 1.0, 0.0)) + answers(8, (0.6, 0.2), first=3)
    assert recipe().decide(waiting, HERE) == Decision()


def test_a_group_without_a_good_answer_is_refused_at_once():
    decision = recipe().decide(answers(7, (0.4, 0.1, 0.0)) + answers(8, (1.0,), first=3), HERE)
    assert decision.batch == ()
    assert [(u.event_id, reason) for u, reason, _ in decision.refused] == [
        (f"smp-{i}", "none_good_enough") for i in range(3)
    ]


def test_the_filter_holds_among_the_best():
    waiting = answers(7, (0.5, 1.0, 0.4))
    decision = recipe(keep=2, batch_size=3).decide(waiting, HERE)
    assert names(decision.batch) == ["smp-1", "smp-0"]
    decision = recipe(keep=3, batch_size=3).decide(waiting, HERE)
    assert names(decision.batch) == ["smp-1", "smp-0"]
    assert [reason for _, reason, _ in decision.refused] == ["not_among_the_best"]


def test_a_prompt_asked_again_is_a_group_of_its_own():
    waiting = answers(7, (0.0, 1.0, 0.0, 0.9, 0.0, 0.0, 1.0))
    decision = recipe().decide(waiting, HERE)
    assert names(decision.batch) == ["smp-1", "smp-3"]
    assert "smp-6" not in names(unit for unit, _, _ in decision.refused)


def test_stale_and_unfit_answers_are_in_no_group():
    waiting = [*answers(7, (1.0, 1.0)), *answers(7, (1.0,), first=2, load_id="run:4")]
    waiting += answers(7, (1.0,), first=3, untrainable="no tokens")
    decision = recipe(batch_size=3).decide(waiting, HERE)
    assert decision.batch == ()
    assert [reason for _, reason, _ in decision.refused] == ["stale", "untrainable: no tokens"]


@pytest.mark.parametrize(
    "knobs", [{"batch_size": 7}, {"keep": 4}, {"weigh_by_score": True, "min_score": -1.0}]
)
def test_knobs_that_contradict_each_other_are_refused(knobs):
    with pytest.raises(ValidationError):
        recipe(**knobs)


@pytest.mark.engine
def test_a_weight_by_score_scales_the_loss(tmp_path):
    model_path = write_model(tmp_path)
    batch = [sample(0, tokens=(26, 11, 3, 7), loss_mask=(1, 1), logprobs=(-3.3, -3.3), score=0.25)]
    knobs = {"eps_clip": 1.0, "eps_clip_high": 1e9}
    losses = [
        recipe(**knobs, weigh_by_score=weigh, min_score=0.0).learner(model_path).step(batch)
        for weigh in (False, True)
    ]
    plain, weighed = (one.metrics["policy_loss"] for one in losses)
    assert plain > 0
    assert weighed == pytest.approx(plain / 4)


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_best_of_learns_a_bandit(tmp_path):
    knobs = {
        "batch_size": 32,
        "group_size": 8,
        "keep": 2,
        "max_staleness": 8,
        "policy_lr": 1e-3,
        "lora_r": 64,
        "lora_alpha": 64,
        "target_modules": ALL_LINEAR,
    }
    recipe = load_recipe("recipes.best_of.recipe:BestOfRecipe", knobs)
    rewards = train(recipe, write_model(tmp_path), steps=180, seed=0, group=8)
    assert tenth(rewards, 0) <= 0.25
    assert tenth(rewards, -1) >= 0.8
