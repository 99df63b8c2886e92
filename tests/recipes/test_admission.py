"""Which samples a recipe takes, which it refuses, and which wait."""

import pytest

from recipes.grpo.knobs import Knobs as GRPOKnobs
from recipes.grpo.learner import credit as grpo_credit
from recipes.grpo.recipe import GRPORecipe
from recipes.policy_gradient.rollouts import rollout
from recipes.sao.knobs import Knobs
from recipes.sao.recipe import SAORecipe
from reefcommon.errors import BadConfig
from reefcommon.ids import LoadId
from reefcommon.recipe_loading import load_recipe
from tests.recipes.samples import sample

SERVING = LoadId("run", 5)


def arrivals():
    """Lags 0, 2, 3, and another incarnation."""
    return [sample(i, load_id=load) for i, load in enumerate(("run:5", "run:3", "run:2", "old:5"))]


@pytest.mark.parametrize(
    ("max_staleness", "admitted", "refused"),
    [
        (
            0,
            ["smp-0"],
            [("smp-1", "stale", 2), ("smp-2", "stale", 3), ("smp-3", "other_incarnation", None)],
        ),
        (2, ["smp-0", "smp-1"], [("smp-2", "stale", 3), ("smp-3", "other_incarnation", None)]),
    ],
)
def test_staleness(max_staleness, admitted, refused):
    """E10: lags 0, 2, 3 and another incarnation under bounds 0 and 2; each refusal has its reason
    and its lag.
    """
    recipe = SAORecipe(Knobs(batch_size=len(admitted), max_staleness=max_staleness))
    decision = recipe.decide(arrivals(), SERVING)
    assert [s.event_id for s in decision.batch] == admitted
    assert [(s.event_id, reason, lag) for s, reason, lag in decision.refused] == refused


def test_too_few_wait_and_are_not_refused():
    decision = SAORecipe(Knobs(batch_size=3)).decide([sample(0), sample(1)], SERVING)
    assert decision.batch == ()
    assert decision.refused == ()


def test_a_sample_of_a_release_that_is_not_known_yet_waits():
    decision = SAORecipe(Knobs(batch_size=1)).decide([sample(0, load_id="run:6")], SERVING)
    assert decision.batch == ()
    assert decision.refused == ()


def test_a_sample_without_weights_is_refused():
    decision = SAORecipe(Knobs()).decide([sample(0, load_id=None)], SERVING)
    assert [reason for _, reason, _ in decision.refused] == ["unknown_weights"]


def test_grpo_takes_complete_groups_and_drops_flat_groups():
    recipe = GRPORecipe(GRPOKnobs(batch_size=2, group_size=2))
    a = [sample(i, tokens=(1, 2, 3, 4, 5), score=float(i)) for i in (0, 1)]
    flat = [sample(i, tokens=(7, 7, 3, 4, 5), score=0.5) for i in (2, 3)]
    alone = [sample(4, tokens=(8, 8, 3, 4, 5))]
    decision = recipe.decide([flat[0], a[0], alone[0], flat[1], a[1]], SERVING)
    assert [s.event_id for s in decision.batch] == ["smp-0", "smp-1"]
    assert [(s.event_id, reason) for s, reason, _ in decision.refused] == [
        ("smp-2", "zero_variance_group"),
        ("smp-3", "zero_variance_group"),
    ]
    assert grpo_credit([rollout(s) for s in decision.batch], 2) == pytest.approx([-1.0, 1.0])


def test_grpo_compares_inside_a_group_when_a_batch_has_two_of_a_prompt():
    batch = [sample(i, score=score) for i, score in enumerate((0.0, 0.2, 0.8, 1.0))]
    found = grpo_credit([rollout(s) for s in batch], 2)
    assert found == pytest.approx([-1.0, 1.0, -1.0, 1.0])


def test_candidates_come_after_the_warm_up_and_at_their_cadence():
    recipe = SAORecipe(Knobs(critic_warmup_steps=3, candidate_every=2))
    assert [step for step in range(1, 10) if recipe.proposes(step)] == [5, 7, 9]


@pytest.mark.parametrize(
    ("knob", "value"), [("batchsize", 4), ("eps_clip", 0), ("batch_size", 0), ("correction", "ppo")]
)
def test_a_wrong_knob_is_named(knob, value):
    with pytest.raises(BadConfig, match=f"reef.{knob}"):
        load_recipe("recipes.sao.recipe:SAORecipe", {knob: value})


@pytest.mark.parametrize("great", [1e30, -1e30, 1e200, 101.0])
@pytest.mark.parametrize(
    "recipe",
    [
        SAORecipe(Knobs(batch_size=2)),
        GRPORecipe(GRPOKnobs(batch_size=2, group_size=2)),
    ],
    ids=["sao", "grpo"],
)
def test_a_score_out_of_range_costs_its_own_sample_alone(recipe, great):
    waiting = [sample(0, score=0.0), sample(1, score=great), sample(2, score=1.0)]
    decision = recipe.decide(waiting, SERVING)
    assert [s.event_id for s in decision.batch] == ["smp-0", "smp-2"]
    assert [(s.event_id, reason) for s, reason, _ in decision.refused] == [
        ("smp-1", f"score_out_of_range: {great:g}")
    ]


def test_the_score_range_is_a_knob():
    wide = {"score_range": [0, 1e6], "batch_size": 1}
    recipe = load_recipe("recipes.sao.recipe:SAORecipe", wide)
    assert recipe.score_range == (0.0, 1e6)
    assert recipe.decide([sample(0, score=5e5)], SERVING).batch
    assert not recipe.decide([sample(0, score=-0.1)], SERVING).batch


@pytest.mark.parametrize("wrong", [[1, 0], [0, ".inf"], [0], [".nan", 1]])
def test_a_wrong_score_range_is_named(wrong):
    with pytest.raises(BadConfig, match=r"reef\.score_range"):
        load_recipe("recipes.sao.recipe:SAORecipe", {"score_range": wrong})
