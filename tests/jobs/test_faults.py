"""Faults of a recipe cost the sample that causes them, and never stop a binding."""

import asyncio
import threading

import pytest

from reefcommon.errors import Transient, Unavailable
from reefcommon.recipe import Decision, Knobs
from reefkit.jobs.faults import MAX_HANGING, BoundedCall, StepTimeout, minimal_failing
from tests.jobs.rig import WordsRig
from tests.jobs.words import WordsRecipe
from tests.recipes.samples import sample


@pytest.mark.parametrize(
    ("size", "culprits"),
    [(1, {0}), (2, {1}), (9, {4}), (64, {0}), (64, {63}), (33, {3, 20}), (8, set(range(8)))],
)
async def test_the_smallest_failing_part_is_found(size, culprits):
    calls = []

    async def fails(part):
        calls.append(part)
        return culprits <= set(part)

    assert set(await minimal_failing(range(size), fails)) == culprits
    assert len(calls) <= 40 + 6 * len(culprits)


class Overflowing(WordsRecipe):
    """Squares the length of each text as a float, as a loss might do with a score."""

    def decide(self, waiting):
        for item in waiting:
            if item.feedback == "boom":
                raise OverflowError("secret words of a user")
        return super().decide(waiting)


class Broken(WordsRecipe):
    """Fails on every sample."""

    def decide(self, waiting):
        raise AttributeError("NoneType has no attribute x") if waiting else RuntimeError("never")


class Pairing(WordsRecipe):
    """Fails only if two certain samples meet, as a group of rollouts may."""

    def decide(self, waiting):
        if {"left", "right"} <= {item.feedback for item in waiting}:
            raise ZeroDivisionError
        return super().decide(waiting)


async def test_a_sample_that_breaks_decide_is_refused_alone(tmp_path):
    rig = WordsRig(tmp_path, recipe=Overflowing(Knobs()))
    await rig.publish(5)
    await rig.arrive("a", "boom", "b")
    await rig.settle()
    (refusal,) = rig.bus.refusals
    assert refusal.sample_id == "smp-1"
    assert refusal.reason.startswith("decide failed: OverflowError at test_faults.py:")
    assert "secret" not in refusal.reason
    assert [item.lineage.sample_ids for item in rig.candidates] == [("smp-0", "smp-2")]


async def test_samples_that_break_decide_only_together_are_refused_together(tmp_path):
    rig = WordsRig(tmp_path, recipe=Pairing(Knobs()))
    await rig.publish(5)
    await rig.arrive("a", "left", "right", "b")
    await rig.settle()
    assert {r.sample_id for r in rig.bus.refusals} == {"smp-1", "smp-2"}
    assert [item.lineage.sample_ids for item in rig.candidates] == [("smp-0", "smp-3")]


async def test_a_recipe_that_fails_on_every_sample_costs_none(tmp_path):
    rig = WordsRig(tmp_path, recipe=Broken(Knobs()))
    await rig.publish(5)
    await rig.arrive("a", "b", "c")
    with pytest.raises(Transient, match=r"cannot decide: .*Error"):
        await rig.settle()
    assert rig.store.counts("samples", rig.key) == {"waiting": 3}


@pytest.mark.parametrize("score", [1e200, -1e30, 101.0])
async def test_a_score_out_of_range_is_refused_alone(tmp_path, score):
    rig = WordsRig(tmp_path)
    await rig.publish(5)
    for number, value in enumerate((1.0, score, 0.0)):
        await rig.handlers.on_unit(sample(number, feedback="w", score=value))
    await rig.settle()
    assert [(r.sample_id, r.reason) for r in rig.bus.refusals] == [("smp-1", "score_out_of_range")]
    assert [item.lineage.sample_ids for item in rig.candidates] == [("smp-0", "smp-2")]


async def test_an_unforeseen_mistake_is_put_off(tmp_path, monkeypatch):
    """A host has several recipes: the mistake of one must not end its process."""
    rig, calls = WordsRig(tmp_path), []

    async def once():
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("words of a user")
        return False

    monkeypatch.setattr(rig.loop, "once", once)
    monkeypatch.setattr(type(rig.loop.kit.retry), "delay_s", lambda *_: 0.0)
    running = asyncio.create_task(rig.loop.run())
    async with asyncio.timeout(5):
        while len(calls) < 2:
            await asyncio.sleep(0.01)
    assert "KeyError at test_faults.py:" in rig.loop.facts()["last_error"]
    assert "words of a user" not in rig.loop.facts()["last_error"]
    assert not running.done()
    running.cancel()


async def test_a_fault_of_a_step_is_narrowed_and_shown(tmp_path):
    rig = WordsRig(tmp_path)
    await rig.publish(5)
    await rig.arrive("a", "bad", "b")
    await rig.settle()
    (refusal,) = rig.bus.refusals
    assert refusal.sample_id == "smp-1"
    assert refusal.reason.startswith("the step failed: ValueError at words.py:")
    assert 'raise ValueError("words of a user")' in rig.loop.facts()["last_error"]
    assert [item.lineage.sample_ids for item in rig.candidates] == [("smp-0", "smp-2")]


async def test_calls_that_hang_are_given_up_and_their_number_is_bounded():
    let, calls = threading.Event(), []

    def hang():
        calls.append(1)
        let.wait(20)
        return "late"

    call = BoundedCall("recipe: decide", 0.02)
    for _ in range(MAX_HANGING):
        with pytest.raises(StepTimeout, match="takes longer than"):
            await call(hang)
    with pytest.raises(Unavailable, match="have not returned"):
        await call(hang)
    assert len(calls) == MAX_HANGING
    let.set()
    call.limit_s = 5.0
    while call._running:
        await asyncio.sleep(0.01)
    assert await call(lambda: "again") == "again"


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt(), GeneratorExit("x")])
async def test_a_recipe_cannot_end_its_host(ending):
    def end():
        raise ending

    with pytest.raises(RuntimeError, match=type(ending).__name__):
        await BoundedCall("recipe: decide", 5.0)(end)


async def test_a_hanging_decide_leaves_the_host_alive(tmp_path):
    let = threading.Event()

    class Hanging(WordsRecipe):
        def decide(self, waiting):
            let.wait(20)
            return Decision()

    rig = WordsRig(tmp_path, recipe=Hanging(Knobs()))
    rig.loop._admission.call.limit_s = 0.1
    await rig.publish(5)
    await rig.arrive("a", "b")
    with pytest.raises(Transient, match="decide takes longer"):
        await rig.settle()
    await rig.arrive("c", first=2)
    assert rig.store.counts("samples", rig.key) == {"waiting": 3}
    let.set()


@pytest.mark.parametrize("lazily", ["batch", "refused"])
async def test_a_lazy_decision_is_read_beside_the_host_and_within_bounds(tmp_path, lazily):
    """A generator is the recipe's code too: on the host's loop it would hold up all recipes."""
    threads, ended = [], []

    def endless(one):
        try:
            while len(threads) < 10_000:
                threads.append(threading.current_thread())
                yield one
        finally:
            ended.append(len(threads))

    class Lazy(WordsRecipe):
        def decide(self, waiting):
            one = waiting[0] if lazily == "batch" else (waiting[0], "no", None)
            return Decision(**{lazily: endless(one)}) if waiting else Decision()

    rig = WordsRig(tmp_path, recipe=Lazy(Knobs()))
    await rig.publish(5)
    await rig.arrive("a", "b", "c")
    with pytest.raises(Transient, match=r"cannot decide: ValueError: .* named twice"):
        await rig.settle()
    assert threading.main_thread() not in threads
    assert max(ended) < 100
