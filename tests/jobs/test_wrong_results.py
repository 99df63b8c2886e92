"""What a recipe returns or raises that no host foresees costs its own units, with a reason, and nobody else's."""

import asyncio
import concurrent.futures
import time

import pytest

from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.events import Signal
from reefcommon.recipe import Decision, Knobs
from reefcommon.recipe_context import BudgetSpent
from reefkit.jobs.faults import MAX_REASON_CHARS, BoundedCall, last_lines, place_of
from tests.jobs.rig import WordsRig
from tests.jobs.words import WordsRecipe


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("not even this")


class Endless(BaseException):
    def __str__(self):
        raise ValueError("not even this")


ODD = [
    StopIteration("no such group"),
    concurrent.futures.CancelledError(),
    concurrent.futures.InvalidStateError(),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    Unspeakable(),
    Endless(),
    BaseExceptionGroup("several", [SystemExit(1)]),
    ValueError("y" * 2_000_000),
    Poison("\ud800" + "y" * 2_000_000),
]


def recipe_of(signal=None, decide=None):
    methods = {}
    if signal is not None:
        methods |= {"signal": signal, "decide": lambda self, waiting: Decision(tuple(waiting))}
    if decide is not None:
        methods["decide"] = decide
    return type("Odd", (WordsRecipe,), methods)(Knobs())


def raising(error):
    def call(*_):
        raise error

    return call


async def until(condition, within_s=60.0):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_whatever_signal_raises_refuses_the_unit_and_the_stage_goes_on(tmp_path, error, kind):
    plain = raising(error)

    async def coroutine(*_):
        plain()

    rig = WordsRig(tmp_path, recipe=recipe_of(signal=coroutine if kind == "async" else plain))
    stage = asyncio.create_task(rig.loop.signals.run())
    await rig.arrive("a", "b")
    # Each wakes up by itself after its last failure, also if no further unit arrives.
    await until(lambda: rig.store.counts("samples", rig.key) == {"refused": 2})
    assert not stage.done()
    assert len(rig.loop.signals.last_error) < 10 * MAX_REASON_CHARS
    stage.cancel()
    await rig.kit.outbox.flush()
    reasons = [refusal.reason for refusal in rig.bus.refusals]
    assert all(reason.startswith("signal failed: ") for reason in reasons)
    assert max(map(len, reasons)) < MAX_REASON_CHARS + 20
    await rig.close()


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_whatever_decide_raises_is_shown_and_the_loop_goes_on(tmp_path, error):
    rig = WordsRig(tmp_path, recipe=recipe_of(decide=raising(error)))
    await rig.publish(5)
    await rig.arrive("a", "b")
    task = asyncio.create_task(rig.loop.run())
    await until(lambda: rig.loop.context.failing is not None)
    assert "cannot decide" in rig.loop.context.failing
    assert len(rig.loop.context.failing) <= MAX_REASON_CHARS + 100
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert rig.store.counts("samples", rig.key) == {"waiting": 2}
    await rig.close()


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_bounded_call_answers_at_once(error):
    call = BoundedCall("odd", 30.0)
    began = time.monotonic()
    with pytest.raises(Exception) as raised:
        await call(raising(error))
    assert time.monotonic() - began < 20
    assert not isinstance(raised.value, TimeoutError)
    assert len(place_of(raised.value)) <= MAX_REASON_CHARS
    assert len(last_lines(raised.value)) < 10 * MAX_REASON_CHARS


@pytest.mark.parametrize(
    "signal",
    [
        "good",
        7,
        Signal.model_construct(score="abc"),
        Signal.model_construct(score=float("nan")),
        Signal.model_construct(score=1.0, teacher=5),
        Signal.model_construct(score=1.0, labels={1: object()}),
        Signal.model_construct(score=1.0, logprobs=("x",)),
        Signal(score=1.0, teacher=({"content": object()},)),
        Signal(score=1.0, teacher=({"content": "\ud800"},)),
    ],
)
async def test_a_signal_that_cannot_be_kept_holds_up_no_event_of_others(tmp_path, signal):
    async def give(self, unit, ctx):
        return signal if unit.feedback == "odd" else Signal(score=1.0)

    rig = WordsRig(tmp_path, recipe=recipe_of(signal=give))
    await rig.publish(5)
    await rig.arrive("odd", "fine")
    stage = asyncio.create_task(rig.loop.signals.run())
    await until(lambda: rig.store.counts("samples", rig.key) == {"refused": 1, "waiting": 1})
    stage.cancel()
    await rig.settle()
    (refusal,) = rig.bus.refusals
    assert refusal.sample_id == "smp-0"
    assert refusal.reason.startswith("signal failed: signal() returned ")
    assert rig.store.unsent(9) == []
    await rig.close()


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((None, None), "the reason of a refusal is a text, not None"),
        ((7, None), "the reason of a refusal is a text, not 7"),
        (("old", 1.5), "a whole number or None, not 1.5"),
        (("old", "two"), "ValueError"),
        (("old", float("inf")), "a whole number or None, not inf"),
        (("old", float("nan")), "a whole number or None, not nan"),
    ],
)
async def test_a_wrong_refusal_names_the_mistake(tmp_path, refusal, words):
    def decide(self, waiting):
        return Decision(refused=tuple((unit, *refusal) for unit in waiting))

    rig = WordsRig(tmp_path, recipe=recipe_of(decide=decide))
    await rig.publish(5)
    await rig.arrive("a", "b")
    with pytest.raises(Transient, match=words):
        await rig.settle()
    await rig.close()


async def test_a_decision_stands_for_the_units_that_were_offered(tmp_path):
    """Changed copies are named by their id alone; a long reason is cut, and a lag of 2.0 is 2."""

    def decide(self, waiting):
        first, *rest = [unit.model_copy(update={"record_ids": ("other",)}) for unit in waiting]
        refused = ((unit, "\ud800" + "z" * 10_000_000, 2.0) for unit in rest)
        return Decision(batch=iter((first,)), refused=list(refused))

    rig = WordsRig(tmp_path, recipe=recipe_of(decide=decide))
    await rig.publish(5)
    await rig.arrive("a", "b")
    await rig.settle()
    assert rig.store.used_records(rig.key, {"rec-0", "other"}) == {"rec-0"}
    (refusal,) = rig.bus.refusals
    assert (refusal.lag, len(refusal.reason)) == (2, MAX_REASON_CHARS)
    await rig.close()


@pytest.mark.parametrize("error", [Unavailable("no judge"), BudgetSpent("used up")])
async def test_what_is_away_costs_no_verdict(tmp_path, error):
    """Longer than the tries that a fault of the recipe has."""
    seen, left = [], [error] * 9

    class Told(WordsRecipe):
        async def on_verdict(self, judged, ctx):
            if left:
                raise left.pop()
            seen.append(judged.outcome)

    rig = WordsRig(tmp_path, recipe=Told(Knobs()))
    await rig.publish(5)
    await rig.arrive("a", "b")
    await rig.settle()
    await rig.reject(rig.candidates[0].event_id)
    await rig.loop.verdicts.settle()
    assert seen == ["rejected"]
    assert rig.store.verdicts(rig.key) == []
    await rig.close()


@pytest.mark.parametrize("stage", ["signals", "verdicts"])
async def test_a_job_store_that_fails_for_a_while_ends_no_stage(tmp_path, stage, monkeypatch):
    async def give(self, unit, ctx):
        return Signal(score=1.0)

    async def on_verdict(self, judged, ctx):
        ctx.store.put("told", 1)

    made = type("Both", (WordsRecipe,), {"signal": give, "on_verdict": on_verdict})
    rig = WordsRig(tmp_path, recipe=made(Knobs()))
    await rig.publish(5)
    await rig.arrive("a")
    method, faults = (
        {"signals": "unsignalled", "verdicts": "verdicts"}[stage],
        [
            Unavailable("the disk is full"),
            ValueError("a unit of another version"),
        ],
    )
    sound = getattr(rig.store, method)

    def failing(*arguments):
        if faults:
            raise faults.pop()
        return sound(*arguments)

    monkeypatch.setattr(rig.store, method, failing)
    task = asyncio.create_task(getattr(rig.loop, stage).run())
    await until(lambda: not faults)
    if stage == "signals":
        await until(lambda: rig.store.counts("samples", rig.key) == {"waiting": 1})
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await rig.close()
