"""A proposal that asks a model: its dialogue is kept, a crash repeats no answered question."""

import asyncio

import pytest

from reefcommon.config_sections import ModelEndpoint
from reefcommon.events import CandidateProposed, SampleRefused, StepCompleted
from reefcommon.harness.tree import HarnessRecipe, Mutation
from reefcommon.recipe import Decision, Dimensions, Knobs
from reefkit.recipe_binding import Binding
from reefkit.recipes import endpoint as endpoints
from reefkit.recipes import runtime
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeServices
from reefkit.retry import RetryPolicy
from tests.fakes.judge import Judge
from tests.harness.support import Published, base_release, fed, first, published, service

KNOBS = Knobs()


class Reflecting(HarnessRecipe):
    """Asks twice, and counts its proposals in its own state."""

    name = "reflecting"
    summary = "for tests"
    dimensions = Dimensions(signal="words", evolves=("harness",))

    def decide(self, waiting):
        return Decision(batch=tuple(waiting[:1]))

    async def propose(self, ctx, tree, units, rejected):
        said = units[0].feedback
        for purpose in ("reflect", "write"):
            question = [{"role": "user", "content": f"{purpose}: {said}"}]
            answer = await ctx.models["editor"].chat(question, purpose=purpose)
        number = ctx.store.get("proposals", 0) + 1
        ctx.store.put("proposals", number)
        text = f"{answer[0].text} {number}"
        return (
            Mutation("create", f"r{number}", {"kind": "rules", "config": {"text": text}}, "asked"),
        )


BINDING = Binding("default", "tests:Reflecting", Reflecting(KNOBS))


@pytest.fixture
async def judge(monkeypatch):
    monkeypatch.setattr(endpoints, "TRIES", RetryPolicy(0.01, 0.02, 2))
    async with Judge(text="Be kind.") as made:
        yield made


@pytest.fixture
async def host_of(tmp_path, judge):
    made = []

    async def make(out, **limits):
        worker = service(tmp_path, out, bindings=(BINDING,))
        entry = ModelEndpoint(url=judge.url, model="m", timeout_s=0.5, **limits)
        pool = ModelPool(worker.store, {"editor": entry})
        kit = worker.kit
        worker.loops[BINDING.key].runtime.services = RecipeServices(
            kit.store, kit.clock, pool, kit.retry
        )
        made.append((worker, pool))
        await worker.handlers.on_publication(first(base_release()))
        return worker

    yield make
    for worker, pool in made:
        worker.loops[BINDING.key].runtime.stop()
        await pool.close()
        worker.store.close()


async def test_the_dialogue_is_kept_with_the_job_and_shortened(host_of, judge, monkeypatch):
    monkeypatch.setattr(runtime, "MAX_TEXT_CHARS", 20)
    out = Published()
    worker = await host_of(out)
    await fed(worker, 1, words="x" * 100)
    await worker.turn(BINDING)
    (candidate,) = out.of(CandidateProposed)
    job = worker.store.of_candidate(candidate.event_id)
    assert [(item["purpose"], item["answers"]) for item in job.output["dialogue"]] == [
        ("reflect", ["Be kind."]),
        ("write", ["Be kind."]),
    ]
    asked = job.output["dialogue"][0]["asked"][0]["content"]
    assert asked.startswith("reflect: xxxxxxxxxxx… (89 characters more)")
    assert worker.store.asked_for(BINDING.key, job.job_id) == (0, 0)


async def test_a_killed_proposal_repeats_only_the_question_in_flight(host_of, judge):
    out = Published()
    worker = await host_of(out)
    await fed(worker, 1)
    await worker.loops[BINDING.key].once()  # the job is open
    judge.moods = ["well", "slow"]
    task = asyncio.create_task(worker.turn(BINDING))
    async with asyncio.timeout(5):
        while judge.calls < 2:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    again = await host_of(out)
    await again.turn(BINDING)
    assert len(out.of(CandidateProposed)) == 1
    assert (judge.calls, len(judge.keys)) == (3, 2)
    assert again.store.used("editor").calls == 2
    assert again.store.state_value(BINDING.key, "proposals")[1] == "1"


async def test_a_proposal_waits_for_its_budget_without_a_loop(host_of, judge):
    out = Published()
    worker = await host_of(out, max_calls=1)
    await fed(worker, 1)
    await worker.turn(BINDING)
    assert "'editor' is used up: 1 of 1 calls" in worker.loops[BINDING.key].facts()["state"]
    await worker.turn(BINDING)
    assert judge.calls == 1
    assert worker.store.counts("samples", BINDING.key) == {"taken": 1}
    raised = await host_of(out, max_calls=5)
    await raised.turn(BINDING)
    assert judge.calls == 2
    assert len(out.of(CandidateProposed)) == 1


async def test_a_model_that_is_away_costs_no_sample(host_of, judge):
    out = Published()
    worker = await host_of(out)
    await fed(worker, 1)
    judge.mood = "500"
    for _ in range(5):
        with pytest.raises(endpoints.ModelAway):
            await worker.turn(BINDING)
    judge.mood = "well"
    await worker.turn(BINDING)
    assert out.of(SampleRefused) == []
    assert len(out.of(CandidateProposed)) == 1


async def test_state_changed_meanwhile_makes_the_proposal_again(host_of, judge):
    out = Published()
    worker = await host_of(out)
    await fed(worker, 1)
    loop, kept = worker.loops[BINDING.key], worker.store.save
    changed = []

    def save(job, **how):
        if job.state == "produced" and not changed:
            changed.append(1)
            ctx = runtime.BufferedState(worker.store, BINDING.key)
            ctx.put("proposals", 6)
            worker.store.apply(ctx.effects())
        return kept(job, **how)

    worker.store.save = save
    await worker.turn(BINDING)
    assert changed
    assert judge.calls == 2  # the answers were kept
    (candidate,) = out.of(CandidateProposed)
    mutation = worker.store.of_candidate(candidate.event_id).output["mutations"][0]
    assert mutation["options"]["config"]["text"] == "Be kind. 7"
    await worker.handlers.on_publication(published(candidate, base_release()))
    await fed(worker, 2)
    await worker.turn(BINDING)
    assert loop.store.state_value(BINDING.key, "proposals")[1] == "8"


async def test_a_step_that_asks_too_often_ends_and_the_next_goes_on(host_of):
    out = Published()
    worker = await host_of(out)
    executor = worker.loops[BINDING.key].executor
    executor.step_calls = 1
    await fed(worker, 1)
    await worker.turn(BINDING)
    (step,) = out.of(StepCompleted)
    assert step.candidate_id is None
    assert "asked models 1 times, its limit" in step.reason
    executor.step_calls = 2
    await fed(worker, 2)
    await worker.turn(BINDING)
    assert len(out.of(CandidateProposed)) == 1
    assert worker.store.counts("samples", BINDING.key) == {"used": 2}
