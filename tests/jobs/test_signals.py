"""The stage of signals: each unit is judged once, and a judge's faults delay units alone."""

import asyncio
import random
import signal
import sys

import pytest
from prometheus_client import REGISTRY

from reefcommon.events import CandidateProposed, SampleRefused, SignalComputed
from reefcommon.recipe import Knobs
from reefkit.jobs import loop
from reefkit.jobs.host import take_over
from reefkit.jobs.recipe_store import CallKey
from reefkit.recipes import endpoint as endpoints
from reefkit.recipes import signal_tries
from reefkit.recipes.signal_tries import MAX_ENDS
from reefkit.recipes.signals import RESTORED
from reefkit.retry import RetryPolicy
from tests.fakes.judge import Judge
from tests.jobs.judged import VOTES, JudgedRecipe, endpoint
from tests.jobs.rig import WordsRig
from tests.recipes.samples import AT, sample
from tests.trainer.rig import Bus, Mortal

CALLS = VOTES + 1


@pytest.fixture(autouse=True)
def short_tries(monkeypatch):
    monkeypatch.setattr(endpoints, "TRIES", RetryPolicy(0.01, 0.02, 2))


@pytest.fixture
async def judge():
    async with Judge() as made:
        yield made


@pytest.fixture
async def rig_of(tmp_path, judge):
    """Makes hosts on `tmp_path`, or on a folder below it."""
    rigs = []

    def make(recipe=None, home="", limits=None, **options):
        made = recipe or JudgedRecipe(Knobs())
        models = endpoint(judge, **(limits or {}))
        rigs.append(WordsRig(tmp_path / home, recipe=made, models=models, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        await rig.close()


async def test_a_unit_waits_for_its_signal_and_decide_sees_it(rig_of, judge):
    rig = rig_of()
    await rig.publish(5)
    await rig.arrive("a", "silent")
    await rig.settle()
    assert rig.store.counts("samples", rig.key) == {"unsignalled": 2}
    await rig.judge()
    (unit,) = rig.store.window(rig.key, 9)
    assert (unit.event_id, unit.reward, unit.signal.words) == ("smp-0", 3.0, "better")
    assert unit.score == 1.0  # the report's, as it was
    assert [(r.sample_id, r.reason) for r in rig.bus.refusals] == [("smp-1", "no_signal")]
    computed = {event.unit_id: event for event in rig.bus.of(SignalComputed)}
    assert (computed["smp-0"].calls, computed["smp-0"].tokens) == (CALLS, 12 * CALLS)
    assert computed["smp-1"].signal is None
    await rig.arrive("b", first=2)
    await rig.judge()
    assert [item.lineage.sample_ids for item in rig.candidates] == [("smp-0", "smp-2")]
    assert rig.store.asked_for(rig.key, "smp-0") == (0, 0)  # kept answers are dropped


async def test_signals_and_questions_are_counted(rig_of, judge):
    def counted():
        labels = {"binding": rig.key, "outcome": "computed"}
        calls = {"model": "judge", "outcome": "ok"}
        names = (("reef_recipe_signals_total", labels), ("reef_recipe_model_calls_total", calls))
        return [REGISTRY.get_sample_value(*name) or 0.0 for name in names]

    rig = rig_of()
    before = counted()
    await rig.arrive("a", "b")
    await rig.loop.signals.settle()
    # A conflict of ctx.store runs `signal` again on kept answers.
    assert [after - n for after, n in zip(counted(), before, strict=True)] == [2.0, 2.0 * CALLS]


async def test_units_are_judged_at_once_up_to_a_bound(rig_of, judge):
    judge.delay_s = 0.2
    rig = rig_of(signals_at_once=2)
    await rig.arrive(*"abcdef")
    await rig.loop.signals.settle()
    assert rig.store.counts("samples", rig.key) == {"waiting": 6}
    assert VOTES < judge.most_at_once <= 2 * VOTES
    # Two calls at once change the same value: the later runs again, and asks nobody again.
    assert sorted(rig.store.state_value(rig.key, "seen")[1][2:-2].split('","')) == [
        f"smp-{n}" for n in range(6)
    ]
    assert judge.calls == 6 * CALLS


async def lived(rig, deaths, rng):
    """Judge everything, killed at `deaths` random moments. Returns the number of kills."""
    killed = 0
    while rig.store.counts("samples", rig.key).get("unsignalled"):
        work = asyncio.create_task(rig.loop.signals.settle())
        if killed < deaths:
            await asyncio.wait((work,), timeout=rng.uniform(0.0, 0.06))
        else:
            await work
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            killed += 1
            await asyncio.sleep(0.05)  # calls of the dead host that are still on their way
            rig.restart()
    return killed


async def test_each_unit_is_judged_once_over_twenty_kills(rig_of, judge, monkeypatch):
    # Lives of milliseconds: on a busy machine a unit may get nowhere in several of them.
    monkeypatch.setattr(signal_tries, "MAX_ENDS", 20)
    judge.delay_s, rng = 0.01, random.Random(7)
    rig = rig_of(signals_at_once=2)
    await rig.publish(5)
    units = 60
    await rig.arrive(*(f"words {n}" for n in range(units)))
    assert await lived(rig, 20, rng) == 20
    await rig.settle()
    computed = rig.bus.of(SignalComputed)
    assert len({event.event_id for event in computed}) == units
    by_id = {}
    for event in computed:
        assert by_id.setdefault(event.event_id, event) == event
    assert len(judge.keys) == units * CALLS
    # Only calls in flight at a kill came twice, under the same key.
    assert judge.calls - len(judge.keys) <= 20 * 2 * VOTES
    use = rig.store.used("judge")
    assert use.calls == units * CALLS


async def test_a_lost_ledger_is_rebuilt_from_the_log(rig_of, judge):
    bus = Bus(Mortal())
    rig = rig_of(home="a", bus=bus)
    await rig.publish(5)
    await rig.arrive("a", "silent", "b", "c")
    await rig.judge()
    calls, events = judge.calls, list(bus.events)
    assert calls == 3 * CALLS
    fresh = rig_of(home="b", bus=bus)
    await fresh.publish(5)
    await fresh.arrive("a", "silent", "b", "c", "d")
    await fresh.judge()
    assert judge.calls == calls + CALLS  # the new unit alone
    new = bus.events[len(events) :]
    assert [event.unit_id for event in new if isinstance(event, SignalComputed)] == ["smp-4"]
    assert {c.lineage.sample_ids for c in bus.of(CandidateProposed)} == {("smp-0", "smp-2")}
    assert fresh.store.refusals(fresh.key) == {"no_signal": 1}


class Lease:
    """Gives out the tokens one after the other."""

    def __init__(self, *tokens):
        self.tokens, self.token = list(tokens), 0

    async def acquire(self, floor):
        self.token = self.tokens.pop(0)
        return self.token


async def test_the_log_is_read_again_after_another_host_has_acted(rig_of, judge):
    """Its signals are not in this store, though the store is not new."""
    bus, lease = Bus(Mortal()), Lease(1, 2, 2, 5)
    mine, other = rig_of(home="a", bus=bus), rig_of(home="b", bus=bus)
    await take_over(mine.store, lease)
    await mine.arrive("a")
    await mine.judge()
    for _ in range(2):  # a restart, and a start that is tried again
        await take_over(mine.store, lease)
        assert mine.store.mark(mine.key, RESTORED) is not None
    await other.arrive("b", first=1)
    await other.judge()
    await take_over(mine.store, lease)
    await mine.arrive("b", first=1)
    await mine.judge()
    assert judge.calls == 2 * CALLS
    assert mine.store.counts("samples", mine.key) == {"waiting": 2}


async def test_signals_of_other_knobs_are_not_used(rig_of, judge):
    class Strict(Knobs):
        bar: float = 0.5

    bus = Bus(Mortal())
    rig = rig_of(JudgedRecipe(Strict()), home="a", bus=bus)
    await rig.arrive("a")
    await rig.loop.signals.settle()
    await rig.kit.outbox.flush()
    other = rig_of(JudgedRecipe(Strict(bar=0.7)), home="b", bus=bus)
    await other.arrive("a")
    await other.loop.signals.settle()
    assert judge.calls == 2 * CALLS


AWAY = ["500", "429", "slow", "closed", "401", "302", "405", "rubbish", "no choices"]


@pytest.mark.parametrize("mood", AWAY)
async def test_a_judge_that_is_away_delays_units_and_nothing_else(rig_of, judge, mood):
    rig = rig_of()
    await rig.publish(5)
    if mood == "closed":
        await judge.close()
    judge.mood = mood
    await rig.arrive("a", "b")
    stage = asyncio.create_task(rig.loop.signals.run())
    async with asyncio.timeout(10):
        while not rig.loop.signals.waits:
            await asyncio.sleep(0.01)
    assert "model judge" in rig.loop.facts()["signals"]["waits"]
    await asyncio.sleep(0.3)  # many tries
    assert rig.store.counts("samples", rig.key) == {"unsignalled": 2}
    await rig.arrive("odd", first=2)  # a unit that needs no judge is not held up for ever
    judge.mood = "well"
    if mood == "closed":
        await judge.open()
    async with asyncio.timeout(10):
        while rig.store.counts("samples", rig.key) != {"waiting": 2, "refused": 1}:
            await asyncio.sleep(0.01)
    assert rig.loop.signals.waits == ""
    stage.cancel()
    await rig.settle()
    assert len(rig.candidates) == 1


@pytest.mark.parametrize("mood", ["400", "422"])
async def test_a_judge_that_refuses_the_request_costs_the_unit_after_some_tries(
    rig_of, judge, mood
):
    judge.mood = mood
    rig = rig_of()
    await rig.publish(5)
    await rig.arrive("a")
    async with asyncio.timeout(10):
        while rig.store.counts("samples", rig.key) != {"refused": 1}:
            await rig.judge()
    (refusal,) = rig.bus.refusals
    assert refusal.reason.startswith("signal failed: model judge")
    judge.mood = "well"
    await rig.arrive("b", first=1)
    await rig.judge()
    assert rig.store.counts("samples", rig.key) == {"refused": 1, "waiting": 1}


async def test_a_fault_of_the_recipe_costs_its_unit_and_names_the_place(rig_of, judge):
    rig = rig_of()
    await rig.publish(5)
    await rig.arrive("odd", "a", "b")
    async with asyncio.timeout(10):
        while not rig.bus.refusals:
            await rig.judge()
    (refusal,) = rig.bus.refusals
    assert refusal.reason.startswith("signal failed: ZeroDivisionError at judged.py:")
    assert "words of a user" not in refusal.reason
    assert [item.lineage.sample_ids for item in rig.candidates] == [("smp-1", "smp-2")]


async def test_one_unit_that_a_judge_cannot_answer_is_given_up(rig_of, judge):
    """A server that fails on this unit alone is not away."""

    class Long(JudgedRecipe):
        async def signal(self, unit, ctx):
            judge.mood = "500" if unit.feedback == "long" else "well"
            return await super().signal(unit, ctx)

    rig = rig_of(Long(Knobs()), signals_at_once=1)
    await rig.publish(5)
    await rig.arrive("long", "a")
    number = 2
    async with asyncio.timeout(20):
        while not rig.bus.refusals:
            await rig.judge()
            await rig.arrive("b", first=number)
            number += 1
            await asyncio.sleep(0.06)
    assert [r.sample_id for r in rig.bus.refusals] == ["smp-0"]
    assert number > 4


async def test_a_spent_budget_stops_the_asking_until_it_is_raised(rig_of, judge):
    rig = rig_of(limits={"max_calls": 2 * CALLS}, signals_at_once=1)
    await rig.publish(5)
    await rig.arrive(*"abcd")
    for _ in range(3):
        await rig.judge()
    assert judge.calls == 2 * CALLS
    assert rig.store.counts("samples", rig.key) == {"used": 2, "unsignalled": 2}
    assert "8 of 8 calls used; raise it" in rig.loop.facts()["signals"]["waits"]
    facts = rig.kit.recipes.models.facts()["judge"]
    assert (facts["used"]["calls"], facts["limits"], facts["spent"]) == (8, {"calls": 8}, ["calls"])
    rig.restart()  # the counters are durable
    await rig.judge()
    assert judge.calls == 2 * CALLS
    rig.models = endpoint(judge, max_calls=100)
    rig.restart()
    await rig.judge()
    assert judge.calls == 4 * CALLS
    assert rig.store.counts("samples", rig.key) == {"used": 2, "waiting": 2}


async def test_units_that_wait_for_a_budget_are_bounded(rig_of, judge, monkeypatch):
    monkeypatch.setattr(loop, "MAX_UNSIGNALLED", 2)
    rig = rig_of(limits={"max_calls": 0})
    await rig.publish(5)
    await rig.arrive(*"abcde")
    await rig.judge()
    rig.loop.forget(AT)
    assert rig.store.counts("samples", rig.key) == {"unsignalled": 2, "refused": 3}
    left = [unit.event_id for unit in rig.store.unsignalled(rig.key, 9, ())]
    assert left == ["smp-3", "smp-4"], "the oldest are the stalest"
    await rig.settle()
    reasons = {(event.sample_id, event.reason) for event in rig.bus.of(SampleRefused)}
    assert reasons == {(f"smp-{n}", "no_signal_in_time") for n in range(3)}
    assert judge.calls == 0


async def test_a_budget_that_ends_inside_a_unit_repeats_no_call(rig_of, judge):
    rig = rig_of(limits={"max_calls": CALLS - 1})
    await rig.arrive("a")
    await rig.loop.signals.settle()
    assert rig.store.counts("samples", rig.key) == {"unsignalled": 1}
    rig.models = endpoint(judge)
    rig.restart()
    await rig.loop.signals.settle()
    assert rig.store.counts("samples", rig.key) == {"waiting": 1}
    assert judge.calls == len(judge.keys) == CALLS


@pytest.mark.parametrize("how", ["exit", "loop"])
async def test_a_signal_that_exits_or_never_ends_costs_its_unit(rig_of, judge, how):
    class Wild(JudgedRecipe):
        async def signal(self, unit, ctx):
            if unit.feedback == "wild" and how == "exit":
                raise SystemExit(3)
            while unit.feedback == "wild":
                pass
            return await super().signal(unit, ctx)

    rig = rig_of(Wild(Knobs()))
    rig.loop.runtime.thread.blocked_limit_s = 0.1
    await rig.publish(5)
    await rig.arrive("wild", "a", "b")
    async with asyncio.timeout(30):
        while rig.store.counts("samples", rig.key).get("unsignalled"):
            await rig.loop.signals.settle()
            await asyncio.sleep(0.02)
    await rig.settle()
    (refusal,) = rig.bus.refusals
    words = "SystemExit" if how == "exit" else "blocks its thread"
    assert refusal.sample_id == "smp-0"
    assert refusal.reason.startswith("signal failed: ")
    assert words in refusal.reason or "RuntimeError" in refusal.reason
    assert len(rig.candidates) == 1


async def test_units_that_will_not_be_used_are_not_judged(rig_of, judge):
    rig = rig_of()
    await rig.handlers.on_unit(sample(0, feedback="a", score=1e9))
    await rig.loop.signals.settle()
    assert judge.calls == 0
    assert rig.store.refusals(rig.key) == {"score_out_of_range": 1}


async def test_a_recipe_that_lost_its_signal_goes_on_without(rig_of, judge):
    from tests.jobs.words import WordsRecipe

    rig = rig_of()
    await rig.arrive("a")
    rig.recipe = WordsRecipe(Knobs())
    rig.restart()
    await rig.loop.signals.settle()
    assert rig.store.counts("samples", rig.key) == {"waiting": 1}


async def test_a_signal_that_ends_the_process_costs_its_unit_after_some_ends(
    rig_of, judge, tmp_path
):
    rig = rig_of()
    await rig.arrive("a", "b", "deadly", "c", "d")
    ends = []
    while rig.store.counts("samples", rig.key).get("unsignalled"):
        command = (sys.executable, "-m", "tests.jobs.signal_host", str(tmp_path), judge.url)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        ends.append(await process.wait())
    assert ends == [7] * MAX_ENDS + [0]
    assert rig.store.counts("samples", rig.key) == {"refused": 1, "waiting": 4}
    await rig.kit.outbox.flush()
    (refusal,) = rig.bus.refusals
    assert (refusal.sample_id, refusal.reason) == (
        "smp-2", f"signal failed: the host ended in it {MAX_ENDS} times",
    )  # fmt: skip
    assert len(judge.keys) == 4 * CALLS
    assert rig.store.cut_off(rig.key) == {}


async def test_a_unit_that_waits_for_a_model_is_not_at_fault(rig_of):
    rig = rig_of()
    await rig.arrive("a", "b")
    for _ in range(2):
        for unit in ("smp-0", "smp-1"):
            rig.store.begin_signal(rig.key, unit)
    rig.store.begin_call(CallKey(rig.key, "smp-0", "request", 0), "judge", {})
    assert rig.store.cut_off(rig.key) == {"smp-1": 2}
    rig.store.end_signal(rig.key, "smp-1")
    assert rig.store.cut_off(rig.key) == {}


async def test_a_process_that_is_killed_repeats_only_calls_in_flight(rig_of, judge, tmp_path):
    rng, units, judge.delay_s = random.Random(3), 24, 0.02
    rig = rig_of()
    await rig.arrive(*(f"words {n}" for n in range(units)))
    kills = 0
    while rig.store.counts("samples", rig.key).get("unsignalled"):
        command = (sys.executable, "-m", "tests.jobs.signal_host", str(tmp_path), judge.url)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        await process.stdout.readline()
        if kills < 4:
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            if process.returncode is None:
                process.kill()
                kills += 1
        assert await process.wait() in (0, -signal.SIGKILL)
    await rig.kit.outbox.flush()
    computed = [event.event_id for event in rig.bus.of(SignalComputed)]
    assert len(computed) == len(set(computed)) == units
    assert kills >= 1
    assert len(judge.keys) == units * CALLS == rig.store.used("judge").calls
    assert judge.calls - len(judge.keys) <= kills * 8 * VOTES
