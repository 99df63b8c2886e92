"""Which units the distillation recipes take, and which they refuse."""

import pytest

from recipes.opd.knobs import Knobs as OPDKnobs
from recipes.opd.recipe import OPDRecipe
from recipes.sdft.recipe import SDFTRecipe
from recipes.sdpo.recipe import SDPORecipe
from recipes.sft.recipe import SFTRecipe
from reefcommon.errors import BadConfig
from reefcommon.events import Sampling
from reefcommon.ids import LoadId
from reefcommon.recipe_loading import load_recipe
from tests.recipes.samples import sample

SERVING = LoadId("run", 5)


@pytest.fixture(params=["opd", "sdft", "sdpo", "sft"])
def recipe(request, tmp_path):
    (tmp_path / "adapter_config.json").touch()
    more = {"opd": {"teacher": str(tmp_path)}, "sdpo": {"group_size": 2}}
    cls = {c.name: c for c in (OPDRecipe, SDFTRecipe, SDPORecipe, SFTRecipe)}[request.param]
    dotted = f"{cls.__module__}:{cls.__name__}"
    return load_recipe(dotted, {"batch_size": 2, **more.get(request.param, {})})


def reasons(decision):
    return {unit.event_id: reason for unit, reason, _ in decision.refused}


def test_a_full_batch_is_taken_and_fewer_wait(recipe):
    units = [sample(i) for i in range(3)]
    assert [u.event_id for u in recipe.decide(units, SERVING).batch] == ["smp-0", "smp-1"]
    few = recipe.decide(units[:1], SERVING)
    assert (few.batch, few.refused) == ((), ())


def test_stale_and_truncated_units_are_refused(recipe):
    stale = sample(0, load_id="run:4")
    cut = sample(1, sampling=(Sampling(top_k=40),))
    unknown = sample(2, load_id="old:5")
    assert reasons(recipe.decide([stale, cut, unknown], SERVING)) == {
        "smp-0": "stale",
        "smp-1": "truncated_sampling: top_k",
        "smp-2": "other_incarnation",
    }


def test_a_score_is_needed_only_if_it_is_the_signal(recipe):
    units = [sample(i, score=None) for i in range(2)]
    decision = recipe.decide(units, SERVING)
    if recipe.name in ("opd", "sdft"):
        assert len(decision.batch) == 2
    else:
        assert set(reasons(decision).values()) == {"no_score"}


def test_candidates_come_at_their_cadence(recipe):
    assert [step for step in range(3) if recipe.proposes(step)] == [1, 2]


def test_sdpo_takes_complete_groups_right_or_not():
    recipe = load_recipe("recipes.sdpo.recipe:SDPORecipe", {"batch_size": 4, "group_size": 2})
    flat = [sample(i, score=0.0) for i in (0, 2)]
    other = [sample(i, tokens=(7, 7, 3, 4, 5), score=float(i == 1)) for i in (1, 4)]
    alone = sample(3, tokens=(8, 8, 3, 4, 5))
    units = [flat[0], other[0], flat[1], alone, other[1]]
    assert [u.event_id for u in recipe.decide(units, SERVING).batch] == [
        "smp-0",
        "smp-2",
        "smp-1",
        "smp-4",
    ]
    assert recipe.decide(units[:4], SERVING).batch == ()
    with pytest.raises(BadConfig, match="multiple of group_size"):
        load_recipe("recipes.sdpo.recipe:SDPORecipe", {"batch_size": 3, "group_size": 2})


def test_sft_refuses_what_is_not_accepted():
    own = load_recipe("recipes.sft.recipe:SFTRecipe", {"batch_size": 1})
    decision = own.decide([sample(0, score=0.9), sample(1)], SERVING)
    assert reasons(decision) == {"smp-0": "not_accepted"}
    assert [u.event_id for u in decision.batch] == ["smp-1"]
    given = load_recipe(
        "recipes.sft.recipe:SFTRecipe", {"batch_size": 1, "target": "demonstration"}
    )
    shown = sample(1, score=None, metadata={"demonstration": "d"})
    decision = given.decide([sample(0), shown], SERVING)
    assert reasons(decision) == {"smp-0": "no_demonstration"}
    assert [u.event_id for u in decision.batch] == ["smp-1"]


def test_opd_is_fresh_and_frozen(tmp_path):
    (tmp_path / "config.json").touch()
    knobs = OPDKnobs(teacher=tmp_path)
    assert (knobs.max_staleness, knobs.average_rate, knobs.importance) == (0, 0.0, "none")
    for knob, value in (("max_staleness", 1), ("average_rate", 0.1)):
        with pytest.raises(BadConfig, match=f"reef.{knob}"):
            load_recipe("recipes.opd.recipe:OPDRecipe", {"teacher": str(tmp_path), knob: value})
