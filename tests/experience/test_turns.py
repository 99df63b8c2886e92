"""Turns and ended sessions through the handlers: the same units however the log is read."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Event, InferenceRecorded, SampleReady, SessionEnded, TurnFollowed
from services.experience.handlers import Handlers
from services.experience.ports import Arrival
from services.experience.settings import Settings
from services.experience.tagging import AT_LEAST
from services.experience.units import Horizon
from services.experience.wants import Periods, Wants
from tests.experience.factory import (
    T0,
    Bodies,
    Clock,
    Flaky,
    Graves,
    Published,
    arrive,
    assistant,
    inference,
    report,
    user,
)
from tests.fakes.experience import MemoryExperienceStore

BOTH = Wants({"default": frozenset({"turn", "session"})})
IDLE_S = 60.0
OWN = Settings(session_idle_s=IDLE_S)
LONG_AFTER = Horizon(T0 + timedelta(days=1))
METHODS = (
    "places", "insert_records", "insert_sessions", "insert_units", "insert_marks", "marks",
    "records", "open_runs",
)  # fmt: skip


@dataclass
class Rig:
    """Handlers on a store in memory; a restart keeps the store and what was published."""

    wants: Wants = BOTH
    settings: Settings = OWN
    store: Flaky = field(default_factory=lambda: Flaky(MemoryExperienceStore()))
    published: Published = field(default_factory=Published)
    handlers: Handlers = field(init=False)

    def __post_init__(self) -> None:
        rows = Periods.begun(self.wants).rows
        self.store.store.period_rows = {(r.scenario, r.kind, r.since): r for r in rows}
        self.begin()

    def begin(self) -> None:
        outside = (self.store, self.published, Graves(), Bodies(), Clock())
        self.handlers = Handlers(self.settings, *outside, wants=self.wants)

    async def restart(self) -> None:
        self.begin()
        await self.handlers.on_start()

    async def take(self, *events: Event) -> None:
        await self.handlers.on_events([arrive(event, n) for n, event in enumerate(events)])

    async def sweep(self, horizon: Horizon = LONG_AFTER) -> None:
        await self.handlers.sweep(caught_up=True, horizon=horizon)

    @property
    def turns(self) -> list[tuple[str, str, list[str]]]:
        return [
            (unit.record_ids[0], unit.ended, [m["content"] for m in unit.next_messages])
            for unit in self.published.events
            if isinstance(unit, TurnFollowed)
        ]

    @property
    def sessions(self) -> list[SessionEnded]:
        return [unit for unit in self.published.events if isinstance(unit, SessionEnded)]


def talk(length: int = 3, name: str = "q", **fields: Any) -> list[InferenceRecorded]:
    """A conversation, a turn a second."""
    said, tokens, turns = [user(name)], [1], []
    for turn in range(length):
        answer = f"answer {turn}"
        more = {"record_id": f"rec-{name}-{turn}", "at": turn, "prompt": tokens, "sampled": (7, 8)}
        turns.append(inference(said, answer, **{**more, **fields}))
        said = [*said, assistant(answer), user(f"more {turn}")]
        tokens = [*tokens, 7, 8, 9]
    return turns


async def test_each_answer_is_followed_once_and_the_session_ends() -> None:
    rig = Rig()
    one, two, three = talk()
    await rig.take(one)
    assert rig.published.events == []
    await rig.take(two, three.model_copy(update={"session_end": True}))
    assert rig.turns == [
        ("rec-q-0", "followed", ["more 0"]),
        ("rec-q-1", "followed", ["more 1"]),
        ("rec-q-2", "closed", []),
    ]
    (session,) = rig.sessions
    assert (session.record_ids, session.ended) == (("rec-q-0", "rec-q-1", "rec-q-2"), "closed")
    assert session.loss_mask == (1, 1, 0, 1, 1, 0, 1, 1)
    assert set(rig.store.store.unit_rows) == {unit.event_id for unit in rig.published.events}


async def test_traffic_without_session_tags_is_told_once() -> None:
    rig = Rig()
    tags = rig.handlers.units.tags.facts
    with structlog.testing.capture_logs() as logged:
        side = talk(1, name="side", tags={"turn-type": "side"})
        for n in range(AT_LEAST - 1):
            await rig.take(*talk(1, name=f"q{n}"), *side)
        assert tags() == {}, "too few to say so"
        await rig.take(*talk(3, name="last"), *talk(3, name="last"))
        assert "100% of the exchanges name no session" in tags()["default"]
        await rig.take(*talk(3, name="others", scenario="others"))
    told = [line for line in logged if line["event"] == "sessions_untagged"]
    assert [line["scenario"] for line in told] == ["default"]
    for n in range(AT_LEAST + 3):
        await rig.take(*talk(1, name=f"s{n}", session_tag=f"s{n}"))
    assert tags() == {}, "half of them"


@pytest.mark.parametrize("kind", ["turn", "session"])
async def test_only_the_kinds_that_a_recipe_wants_are_made(kind: str) -> None:
    rig = Rig(wants=Wants({"default": frozenset({kind})}))
    other = talk(name="other", scenario="other", session_end=True)
    await rig.take(*talk(session_end=True), *other)
    types = {"turn": TurnFollowed, "session": SessionEnded}
    assert {type(unit) for unit in rig.published.events} == {types[kind]}
    assert {unit.scenario for unit in rig.published.events} == {"default"}


async def test_a_recipe_gets_the_units_of_its_own_time() -> None:
    """Bound after the first exchange, and gone before the third: a second reading is told when."""
    rig = Rig(wants=Wants())
    one, two, three, four = talk(4, session_tag="t")

    async def bound(wants: Wants, at: float) -> None:
        rig.wants = wants
        rig.begin()
        rig.handlers.now.time = T0 + timedelta(seconds=at)  # type: ignore[attr-defined]
        await rig.handlers.on_start()

    await rig.take(one)
    await bound(BOTH, 0.5)
    await rig.take(two)
    await bound(Wants(), 1.5)
    await rig.take(three)
    await bound(Wants({"default": frozenset({"turn"})}), 2.5)
    await rig.take(four)
    await rig.sweep()
    assert rig.turns == [("rec-q-1", "followed", ["more 1"]), ("rec-q-3", "idle", [])]
    assert [session.record_ids for session in rig.sessions] == [("rec-q-1",)]
    again = Rig()
    again.handlers.units.periods = rig.handlers.units.periods
    await again.take(one, two, three, four)
    await again.sweep()
    assert unique(again) == unique(rig)


async def test_with_reports_alone_the_store_is_asked_for_nothing_more() -> None:
    counts: dict[str, int] = {}

    class Counting(Flaky):
        def __getattr__(self, name: str) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return super().__getattr__(name)

    rig = Rig(wants=Wants())
    rig.store = Counting(MemoryExperienceStore())
    rig.begin()
    record = inference()
    await rig.take(record, report(record.event_id))
    await rig.sweep()
    assert [type(unit) for unit in rig.published.events] == [SampleReady]
    assert not counts.keys() & {"marks", "open_runs", "insert_marks", "insert_units"}


async def test_a_session_ends_when_it_was_idle_and_the_log_was_read_that_far() -> None:
    rig = Rig()
    (one,) = talk(1)
    await rig.take(one)
    at = one.at + timedelta(seconds=2 * IDLE_S)
    for horizon in (
        Horizon(at),  # an event may be late in the log
        Horizon(at + timedelta(hours=1), behind=frozenset({0})),
        Horizon(at + timedelta(hours=1), partitions=frozenset({1})),
    ):
        await rig.sweep(horizon)
        assert rig.turns == []
    await rig.sweep(Horizon(at + timedelta(seconds=1), partitions=frozenset({0})))
    assert rig.turns == [("rec-q-0", "idle", [])]
    assert rig.sessions[0].at == one.at + timedelta(seconds=IDLE_S)
    await rig.sweep()
    assert len(rig.published.events) == 2


async def test_a_partition_that_is_behind_ends_sessions_up_to_what_it_has_read() -> None:
    rig = Rig()
    (one,) = talk(1)
    await rig.take(one, inference((user("other"),), at=3 * IDLE_S, record_id="rec-late"))
    await rig.sweep(Horizon(LONG_AFTER.at, behind=frozenset({0})))
    assert rig.turns == [("rec-q-0", "idle", [])]


async def test_a_restart_knows_which_sessions_are_open() -> None:
    rig = Rig()
    await rig.take(*talk(2))
    await rig.restart()
    await rig.sweep()
    assert rig.turns[1:] == [("rec-q-1", "idle", [])]
    assert rig.sessions[0].record_ids == ("rec-q-0", "rec-q-1")


async def test_an_untrainable_exchange_is_a_unit_without_tokens() -> None:
    rig = Rig()
    one, two = talk(2)
    await rig.take(one.model_copy(update={"outcome": "aborted"}), two)
    (unit,) = [unit for unit in rig.published.events if isinstance(unit, TurnFollowed)]
    assert (unit.untrainable, unit.tokens, unit.ended) == ("aborted", (), "followed")


async def test_a_unit_that_the_broker_refuses_costs_no_other() -> None:
    rig = Rig()
    publish = rig.published.publish

    async def refusing(event: Event, topic: Any, *, shard: str | None = None) -> None:
        if getattr(event, "record_ids", ()) == ("rec-q-0",):
            raise Poison("too large")
        await publish(event, topic)

    rig.published.publish = refusing  # type: ignore[method-assign]
    await rig.take(*talk(3))
    assert [name for name, *_ in rig.turns] == ["rec-q-1"]
    await rig.sweep()
    assert [name for name, *_ in rig.turns] == ["rec-q-1", "rec-q-2"]


async def test_a_large_exchange_has_its_texts_in_the_unit() -> None:
    """Both requests are claims: the messages come from the body store."""
    rig = Rig()
    claimed = []
    for event in talk(2):
        sha = event.event_id.ljust(64, "0")
        texts = {"request": event.request, "response": event.response}
        rig.handlers.bodies.kept[sha] = texts  # type: ignore[attr-defined]
        ref = {"uri": "file://x", "sha256": sha, "size_bytes": 1}
        bare = {"request": None, "response": None, "body_ref": ref}
        claimed.append(InferenceRecorded.model_validate({**event.model_dump(), **bare}))
    await rig.take(*claimed)
    (unit,) = [unit for unit in rig.published.events if isinstance(unit, TurnFollowed)]
    assert [m["content"] for m in unit.messages + unit.next_messages] == ["q", "answer 0", "more 0"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["insert_units", "insert_marks", "publish"])
@pytest.mark.parametrize("restart", [True, False])
async def test_a_kill_between_two_lines_makes_the_same_units(
    method: str, when: str, restart: bool
) -> None:
    plain, rig = Rig(), Rig()
    batches = [talk()[:1], talk()[1:]]
    for batch in batches:
        await plain.take(*batch)
    await rig.take(*batches[0])
    if method == "publish":
        rig.published.failures = 1
    else:
        getattr(rig.store, when)[method] = 1
    with pytest.raises(Unavailable):
        await rig.take(*batches[1])
    if restart:
        await rig.restart()
    await rig.take(*batches[1])
    assert unique(rig) == unique(plain)
    assert len(unique(plain)) == 2


def unique(rig: Rig) -> dict[str, Event]:
    """Units by id. Two units of one id must be equal, and be the store's row."""
    units: dict[str, Event] = {}
    for unit in rig.published.events:
        assert units.setdefault(unit.event_id, unit) == unit
    assert units == rig.store.store.unit_rows
    records = [unit.record_ids[0] for unit in units.values() if isinstance(unit, TurnFollowed)]
    assert len(records) == len(set(records))
    parts = [unit.record_ids for unit in units.values() if isinstance(unit, SessionEnded)]
    names = [name for part in parts for name in part]
    assert len(names) == len(set(names))
    return units


def traffic(chooser: random.Random, count: int = 40) -> list[InferenceRecorded]:
    """Conversations of every kind in the order of the log: retries, branches, pauses, side calls."""
    talks: list[dict[str, Any]] = []
    log: list[InferenceRecorded] = []
    at = 0.0
    for number in range(count):
        at += chooser.choice((0.5, 1.0, 5.0, IDLE_S + 1))
        if not talks or chooser.random() < 0.25:
            tag = chooser.choice((None, f"tag-{len(talks)}"))
            talks.append({"said": [user(f"q{len(talks) % 3}")], "tag": tag, "tokens": [1]})
        own = chooser.choice(talks)
        said, tokens = own["said"], own["tokens"]
        side, answer = chooser.random() < 0.15, f"a{chooser.randrange(3)}"
        asked = [*said, user("title?")] if side else said
        if own["tag"] and chooser.random() < 0.2:
            asked = said[-1:]  # a history that the client rewrote
        log.append(
            inference(
                asked, answer, record_id=f"rec-{number:03}", at=at, prompt=tokens, sampled=(7,),
                session_tag=own["tag"], tags={"turn-type": "side"} if side else {},
                outcome=chooser.choice(("ok", "ok", "ok", "failed")),
                session_end=chooser.random() < 0.1, duration_ms=chooser.choice((10.0, 2000.0)),
            )
        )  # fmt: skip
        if not side and chooser.random() < 0.7:  # else the next request repeats this one
            own["said"] = [*said, assistant(answer), user(f"u{number}")]
            own["tokens"] = [*tokens, 7, 9]
        if chooser.random() < 0.1:
            log.append(chooser.choice(log))  # the log has it twice
    return log


def read_once(log: Sequence[Arrival]) -> dict[str, Event]:
    async def read() -> dict[str, Event]:
        rig = Rig()
        await rig.handlers.on_events(log)
        await rig.sweep()
        return unique(rig)

    return asyncio.run(read())


async def until_done(rig: Rig, chooser: random.Random, work: Callable[[], Any]) -> None:
    """Try again after each failure; often in a new process."""
    while True:
        try:
            return await work()
        except Unavailable:
            if chooser.random() < 0.5:
                with_failures = rig.store.before, rig.store.after
                rig.store.before, rig.store.after = {}, {}
                await rig.restart()
                rig.store.before, rig.store.after = with_failures


async def read_badly(log: Sequence[Arrival], chooser: random.Random) -> dict[str, Event]:
    """In batches of any size, with failures, restarts, and offsets that were not committed."""
    rig, position = Rig(), 0
    while position < len(log):
        end = min(len(log), position + chooser.randrange(1, 9))
        for failing in (rig.store.before, rig.store.after):
            failing[chooser.choice(METHODS)] = chooser.choice((0, 0, 1, 2))
        rig.published.failures = chooser.choice((0, 0, 1))
        batch = log[position:end]
        await until_done(rig, chooser, lambda batch=batch: rig.handlers.on_events(batch))
        if chooser.random() < 0.3:
            at = log[end - 1].event.at  # type: ignore[union-attr]
            await until_done(rig, chooser, lambda at=at: rig.sweep(Horizon(at)))
        if chooser.random() < 0.2:
            await rig.restart()
        # A rebalance takes the reader back to what was committed.
        position = (
            end if chooser.random() < 0.7 else chooser.randrange(max(0, position - 9), end + 1)
        )
    rig.store.before, rig.store.after, rig.published.failures = {}, {}, 0
    await rig.sweep()
    return unique(rig)


@given(st.integers(0, 10**9))
def test_any_reading_of_the_log_makes_the_same_units(seed: int) -> None:
    chooser = random.Random(seed)
    log = [arrive(event, offset) for offset, event in enumerate(traffic(chooser))]
    once = read_once(log)
    assert asyncio.run(read_badly(log, chooser)) == once
    assert expected(log) == {u.record_ids[0] for u in once.values() if isinstance(u, TurnFollowed)}


def expected(log: Sequence[Arrival]) -> set[str]:
    """Exchanges with a unit: all but side calls and those that a retry has replaced."""
    rig = Rig()

    async def read() -> Iterator[tuple[str, str]]:
        await rig.handlers.on_events(log)
        await rig.sweep()
        return ((name, mark.state) for (_, name), mark in rig.store.store.mark_rows.items())

    states = dict(asyncio.run(read()))
    assert states.keys() == {arrival.event.event_id for arrival in log if arrival.event}
    assert not set(states.values()) & {"open", "passed"}
    return {name for name, state in states.items() if state not in ("side", "abandoned")}


async def test_another_process_may_have_gone_on_meanwhile() -> None:
    """A partition goes to another process and comes back: its lines are read again."""
    one, other = Rig(), Rig()
    other.store, other.published = one.store, one.published
    other.begin()
    turns = talk(4)
    arrivals = [arrive(event, offset) for offset, event in enumerate(turns)]
    await one.handlers.on_events(arrivals[:1])
    await other.handlers.on_events([replace(arrivals[1]), arrivals[2]])
    await one.handlers.on_events(arrivals[3:])
    await one.sweep()
    assert [name for name, *_ in one.turns] == [event.event_id for event in turns]
    assert len(unique(one)) == 5
