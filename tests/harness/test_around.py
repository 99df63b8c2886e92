"""What goes wrong around the harness service, and several recipes in it."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from reefcommon.config import ServeConfig
from reefcommon.config_sections import RecipeBinding
from reefcommon.errors import BadConfig, Transient, Unavailable
from reefcommon.events import CandidateProposed, SampleRefused, StepCompleted
from reefcommon.harness.tree import HarnessRecipe, Mutation
from reefcommon.recipe import Decision, Dimensions, Knobs
from reefkit.artifacts.git import GitArtifactStore
from reefkit.recipe_binding import Binding, bindings
from tests.harness.support import (
    BINDING,
    Published,
    base_release,
    fed,
    first,
    service,
)


@dataclass
class AwayStore:
    real: GitArtifactStore
    away: bool = True

    def put(self, tree, manifest, scenario):
        if self.away:
            raise Unavailable("the artifact store does not answer")
        return self.real.put(tree, manifest, scenario)

    def get(self, content_id, scenario, destination):
        return self.real.get(content_id, scenario, destination)


async def test_t2_the_artifact_store_is_away_and_the_window_waits_for_it(tmp_path):
    """T2. Nothing is proposed, nothing is given up, readiness says why; then one candidate."""
    out, store = Published(), AwayStore(GitArtifactStore(tmp_path / "artifacts.git"))
    worker = service(tmp_path, out, artifacts=store)
    await worker.handlers.on_publication(first(base_release()))
    await fed(worker, 1, 2, 3)
    for _ in range(8):  # more than a failing recipe is allowed
        with pytest.raises(Unavailable, match="the artifact store does not answer"):
            await worker.turn()
    assert out.events == []
    store.away = False
    await worker.turn()
    assert len(out.of(CandidateProposed)) == 1


class Moody(HarnessRecipe):
    """Fails on its first window, proposes nonsense on the second, and works on the third."""

    name = "moody"
    summary = "for tests"
    dimensions = Dimensions(signal="none", evolves=("harness",))

    def decide(self, waiting):
        return Decision(batch=tuple(waiting[:1]))

    async def propose(self, ctx, tree, samples, rejected):
        number = samples[0].event_id
        if number == "smp-1":
            raise ZeroDivisionError("secret words of a user")
        return (
            ["nonsense"]
            if number == "smp-2"
            else (Mutation("create", "r", {"kind": "rules", "config": {"text": "fine"}}),)
        )


async def test_a_recipe_that_fails_loses_its_sample_and_not_the_service(tmp_path):
    out = Published()
    binding = Binding("default", "tests:Moody", Moody(Knobs()))
    worker = service(tmp_path, out, bindings=(binding, BINDING))
    await worker.handlers.on_publication(first(base_release()))
    await fed(worker, 1, 2, 3)
    await worker.turn(binding)
    await worker.turn(BINDING)
    assert [step.recipe for step in out.of(StepCompleted)] == ["moody", "feedback_rules"]
    refusals = {event.sample_id: event.reason for event in out.of(SampleRefused)}
    assert refusals["smp-1"].startswith("the step failed: ZeroDivisionError at test_around.py")
    assert refusals["smp-2"].endswith("proposed something that is not a Mutation")
    assert not any("secret words" in event.model_dump_json() for event in out.events)


def test_only_harness_recipes_are_hosted():
    bound = RecipeBinding(recipe=BINDING.dotted, scenario="s", batch_size=2, min_agreement=2)
    weights = RecipeBinding(recipe="recipes.sao.recipe:SAORecipe")
    hosted = bindings(ServeConfig(reef=(bound, weights)), HarnessRecipe)
    assert [(item.scenario, item.dotted, item.recipe.knobs.batch_size) for item in hosted] == [
        ("s", BINDING.dotted, 2)
    ]
    with pytest.raises(BadConfig, match="batch_size"):
        bindings(
            ServeConfig(reef=(RecipeBinding(recipe=BINDING.dotted, batch_size=0),)), HarnessRecipe
        )


async def test_two_bindings_of_one_scenario_have_separate_samples(tmp_path):
    other = replace(BINDING, dotted="another:Recipe")
    worker = service(tmp_path, Published(), bindings=(BINDING, other))
    await fed(worker, 1, 1)
    worker.store.refuse(BINDING.key, {"smp-1": "no"}, ())
    assert [len(worker.store.window(item.key, 5)) for item in (BINDING, other)] == [0, 1]


class Hanging(Moody):
    """Never proposes anything for its first sample."""

    async def propose(self, ctx, tree, samples, rejected):
        if samples[0].event_id == "smp-1":
            await asyncio.sleep(60)
        return (Mutation("create", "r", {"kind": "rules", "config": {"text": "fine"}}),)


async def test_a_proposal_that_hangs_costs_its_window_after_some_tries(tmp_path):
    out = Published()
    binding = Binding("default", "tests:Hanging", Hanging(Knobs()))
    worker = service(tmp_path, out, bindings=(binding,))
    worker.loops[binding.key].executor.propose_timeout_s = 0.05
    await worker.handlers.on_publication(first(base_release()))
    await fed(worker, 1, 2)
    for _ in range(2):
        with pytest.raises(Transient, match="propose takes longer"):
            await worker.turn(binding)
    await worker.turn(binding)
    (refusal,) = out.of(SampleRefused)
    assert refusal.sample_id == "smp-1"
    assert refusal.reason.startswith("the step failed 3 times; last: tests:Hanging: propose takes")
    assert [item.lineage.sample_ids for item in out.of(CandidateProposed)] == [("smp-2",)]


async def test_a_head_whose_tree_is_lost_costs_no_sample(tmp_path):
    out = Published()
    worker = service(tmp_path, out)
    lost = base_release().model_copy(update={"contents": {"harness": "harness-" + "0" * 32}})
    await worker.handlers.on_publication(first(lost))
    await fed(worker, 1, 2, 3)
    for _ in range(8):
        with pytest.raises(Unavailable, match="or roll default back"):
            await worker.turn()
    assert out.of(SampleRefused) == []
