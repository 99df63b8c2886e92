"""The contract of ExperienceStore: in memory, on chDB, and on the ClickHouse server that
`REEF_TEST_CLICKHOUSE_URL` names (an empty database)."""

import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from reefcommon import events
from reefcommon.errors import BadConfig, Poison, Unavailable
from services.experience.clickhouse import ClickHouseReads, ClickHouseStore, Database, rows
from services.experience.clickhouse.client import MIGRATIONS
from services.experience.domain.line import Mark, RunEnd, TurnEnd
from services.experience.domain.parking import Parked
from services.experience.domain.samples import Record, make_samples
from services.experience.domain.sessions import Assignment, Node, Session
from services.experience.domain.units import session_units, turn_unit
from services.experience.ports import ExperienceStore, OpenRun, ReportRow
from services.experience.wants import Period
from tests.experience.factory import T0, inference, report, user
from tests.experience.test_broker import published
from tests.fakes.experience import MemoryExperienceStore

SERVER = os.environ.get("REEF_TEST_CLICKHOUSE_URL", "")
TABLES = (
    "records",
    "reports",
    "samples",
    "sessions",
    "steps",
    "refusals",
    "releases",
    "servings",
    "turns",
    "units",
    "signals",
    "periods",
    "migrations",
)


@pytest.fixture(
    params=[
        "chdb",
        pytest.param(
            "server",
            marks=pytest.mark.skipif(not SERVER, reason="REEF_TEST_CLICKHOUSE_URL names no server"),
        ),
    ]
)
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, migrated: Path
) -> AsyncIterator[Database]:
    database = (
        Database.server(SERVER)
        if request.param == "server"
        else Database.embedded(shutil.copytree(migrated, tmp_path / "chdb", symlinks=True))
    )
    for table in TABLES if request.param == "server" else ():
        await database._run(
            lambda client, table=table: client.command(f"DROP TABLE IF EXISTS {table} SYNC")
        )
    await database.migrate()
    yield database
    await database.close()


@pytest.fixture
def store(database: Database) -> ClickHouseStore:
    return ClickHouseStore(database)


@pytest.fixture(params=["memory", pytest.param("clickhouse", marks=pytest.mark.store)])
async def any_store(
    request: pytest.FixtureRequest, tmp_path: Path, migrated: Path
) -> AsyncIterator[ExperienceStore]:
    if request.param == "memory":
        yield MemoryExperienceStore()
        return
    database = Database.embedded(shutil.copytree(migrated, tmp_path / "any", symlinks=True))
    yield ClickHouseStore(database)
    await database.close()


def record(event: events.InferenceRecorded, session: str = "ses-1", turn: int = 0) -> Record:
    return Record(event, "digest", Assignment(session, turn, turn + 1, None))


FULL = inference(
    api="messages",
    outcome="upstream_incomplete",
    session_tag="t",
    tags={"client": "é\n'\"\\"},
    request={"messages": [user("\u0000 \U0001f41f")], "n": 2**70, "x": 1e-320, "deep": [[{}]]},
    response={"choices": []},
    body_ref=events.BodyRef(uri="s3://b/k", sha256="a" * 64, size_bytes=9),
    versions=("v1", "v2"),
    logprobs=(-0.1, -1 / 3),
    traceparent="00-1-2-03",
    error="it's broken",
    status=502,
    stream=True,
    session_end=True,
    first_token_ms=0.1,
    idempotency_digest="i",
    usage=events.Usage(prompt_tokens=1, completion_tokens=2, estimated=True),
)
BARE = inference(
    request=None,
    response=None,
    release_id=None,
    load_id=None,
    completions=(),
    prompt=(),
    usage=None,
)


@pytest.mark.parametrize("event", [FULL, BARE, inference()], ids=["full", "bare", "usual"])
async def test_a_record_is_read_as_it_was_written(
    any_store: ExperienceStore, event: events.InferenceRecorded
) -> None:
    written = replace(record(event), place=Assignment("s", 2, 5, "rec-0"))
    await any_store.insert_records([written])
    await any_store.insert_records([written])
    assert await any_store.records([event.event_id, "rec-unknown"]) == {event.event_id: written}
    assert await any_store.places([event.event_id, "rec-unknown"]) == {
        event.event_id: ("digest", written.place)
    }


@pytest.mark.store
async def test_a_sample_is_read_as_it_was_written(store: ClickHouseStore) -> None:
    event = inference(
        tags={"a": "b"},
        logprobs=(-1 / 3, -1e-9),
        sampling=events.Sampling(top_p=1 / 3, stated_by="engine"),
        loads={"weights": "inc:1"},
    )
    said = report(event.event_id, feedback="so so").model_copy(update={"metadata": {"n": 2**65}})
    (sample,) = make_samples(said, [record(event)])
    await store.insert_samples([sample])
    (row,) = await store.database.query("SELECT * FROM samples FINAL")
    plain = {name: row[name] for name in rows.SAMPLES if name in type(sample).model_fields}
    texts = {
        name: rows.load(row[name])
        for name in ("tags", "feedback", "metadata", "messages", "tools", "sampling", "loads")
    }
    assert sample == events.SampleReady(event_id=row["sample_id"], **{**plain, **texts})


async def test_the_newest_state_of_a_session_counts_and_is_found_by_id_and_by_tail(
    any_store: ExperienceStore,
) -> None:
    first = Node("rec-1", 0, "req1", ("t1",))
    old = Session("ses-1", "s", False, "", 1, 1, T0, T0, "rec-1", (first,))
    new = replace(
        old,
        turns=2,
        sequence=2,
        last_at=T0 + timedelta(seconds=1),
        turn_record_id="rec-2",
        nodes=(first, Node("rec-2", 1, "req2", ("t2", "t3"))),
    )
    elsewhere = replace(old, scenario="other", nodes=(Node("rec-9", 0, "req1", ("t2",)),))
    later = T0 + timedelta(seconds=901)
    tagged = replace(elsewhere, scenario="s", session_id="tag", tagged=True, last_at=later)
    await any_store.insert_sessions([new, elsewhere])
    await any_store.insert_sessions([old, tagged])
    assert await any_store.sessions([("s", "ses-1")], []) == [new]
    assert await any_store.sessions([], [("s", "t3"), ("s", "t1")]) == [new]
    assert await any_store.sessions([], [("s", "t1")]) == [new], "any turn may be gone on from"
    assert await any_store.sessions([], [("other", "t2")]) == [elsewhere]
    assert await any_store.sessions([("s", "tag"), ("s", "nobody")], []) == [tagged]
    assert await any_store.sessions([], [], [("s", "req1"), ("elsewhere", "req1")]) == [new]
    assert await any_store.recent_sessions(within_s=900, limit=9) == [new, tagged]
    assert await any_store.recent_sessions(within_s=900, limit=1) == [tagged]


async def test_the_latest_state_of_an_exchange_counts_and_tells_the_open_sessions(
    any_store: ExperienceStore,
) -> None:
    open_ = Mark("rec-1", 1, 1, "req", ("t1", "t2"), T0, 3, "open")
    side = Mark("rec-2", 2, 0, "", (), T0, 3, "side")
    last = replace(open_, record_id="rec-3", sequence=3, at=T0 + timedelta(seconds=1))
    key, other, done = ("s", "ses-1"), ("other", "ses-1"), ("s", "done")
    ended = replace(open_, state="closed")
    await any_store.insert_marks([(key, open_), (key, side), (key, last), (other, open_)])
    await any_store.insert_marks([(key, replace(open_, state="followed")), (done, ended)])
    await any_store.insert_marks([(key, open_), (done, open_)])  # a process that is behind
    found = await any_store.marks([key, done, ("s", "nobody")])
    by_sequence = sorted(found[key], key=lambda mark: mark.sequence)
    assert by_sequence == [replace(open_, state="followed"), side, last]
    assert (found[done], found["s", "nobody"]) == ([ended], [])
    runs = [OpenRun(other, T0, 3), OpenRun(key, last.at, 3)]
    assert await any_store.open_runs() == runs


async def test_a_period_ends_once_and_is_kept(any_store: ExperienceStore) -> None:
    one, two = Period("s", "turn", T0), Period("s", "session", T0 + timedelta(seconds=1))
    assert not await any_store.has_records()
    await any_store.insert_periods([one, two])
    await any_store.insert_periods([replace(one, until=two.since)])
    assert await any_store.periods() == [replace(one, until=two.since), two]
    await any_store.insert_records([record(inference())])
    assert await any_store.has_records()


@pytest.mark.store
async def test_units_are_read_as_they_were_written(store: ClickHouseStore) -> None:
    event = record(inference(tags={"a": "b"}, record_id="rec-1", sampling=events.Sampling(top_k=9)))
    turn = turn_unit(event, TurnEnd("rec-1", "followed", T0, (user("é"),)))
    (ended,) = session_units([event], RunEnd(("rec-1",), "closed", T0))
    await store.insert_units([turn, ended])
    await store.insert_units([turn])
    kinds = {"turn": events.TurnFollowed, "session": events.SessionEnded}
    texts = ("tags", "metadata", "messages", "tools", "sampling", "loads", "next_messages")
    found = []
    for row in await store.database.query("SELECT * FROM units FINAL ORDER BY kind DESC"):
        whole = {**row, **{name: rows.load(row[name]) for name in texts}}
        cls = kinds[row["kind"]]
        fields = {name: whole[name] for name in cls.model_fields if name in whole}
        found.append(cls(event_id=row["unit_id"], **fields))
    assert found == [turn, ended]
    reads = ClickHouseReads(store.database)
    (row,) = (await reads.page("units", "default", limit=9, kind="turn"))["data"]
    assert (row["unit_id"], row["next_messages"]) == (turn.event_id, [user("é")])


@pytest.mark.store
async def test_a_signal_is_shown_beside_its_unit(store: ClickHouseStore) -> None:
    event = record(inference(record_id="rec-1"))
    turn = turn_unit(event, TurnEnd("rec-1", "idle", T0))
    said = events.Signal(
        score=-1.0, words="greet", teacher=(user("x"),), labels={"votes": 3.0}, logprobs=(-0.5,)
    )
    signals = [
        events.SignalComputed(
            event_id=f"sig-{n}", at=T0, scenario="default", recipe="r", unit_id=turn.event_id,
            signal=signal, calls=4, tokens=2**40,
        )
        for n, signal in enumerate((said, None))
    ]  # fmt: skip
    await store.insert_records([event])
    await store.insert_units([turn])
    await store.insert_outcomes([*signals, signals[0]])
    reads = ClickHouseReads(store.database)
    one, none = (await reads.page("signals", "default", limit=9, unit=turn.event_id))["data"][::-1]
    assert (one["score"], one["weight"], one["words"], one["labels"]) == (
        -1.0,
        1.0,
        "greet",
        {"votes": 3.0},
    )
    assert (one["scored_tokens"], none["scored_tokens"]) == (1, 0)
    assert (none["abstained"], none["score"], none["tokens"]) == (1, None, 2**40)
    view = await reads.record("rec-1")
    assert view is not None
    assert [row["unit_id"] for row in view["units"]] == [turn.event_id]
    assert [row["signal_id"] for row in view["signals"]] == ["sig-0", "sig-1"]


async def test_the_newest_state_of_a_report_counts(any_store: ExperienceStore) -> None:
    waits = [
        Parked(
            report("rec-1", report_id=f"rep-{n}", feedback={"a": 1}, metadata={"b": []}),
            T0,
            3,
            7 + n,
            b"k",
        )
        for n in range(3)
    ]
    await any_store.insert_reports([ReportRow(parked, "parked", None, 1) for parked in waits])
    assert await any_store.parked(after="", limit=2) == waits[:2]
    assert await any_store.parked(after="rep-1", limit=2) == waits[2:]
    await any_store.insert_reports(
        [ReportRow(waits[1], "joined", "smp-1", 2), ReportRow(waits[2], "expired", None, 2)]
    )
    assert await any_store.parked(after="", limit=9) == waits[:1]
    states = await any_store.report_states(["rep-0", "rep-1", "rep-9"])
    assert {report_id: (known.state, known.offset) for report_id, known in states.items()} == {
        "rep-0": ("parked", 7),
        "rep-1": ("joined", 8),
    }
    assert await any_store.has_expired()
    assert await any_store.expired(["rec-1"]) == waits[2:]
    assert await any_store.expired(["rec-2"]) == []


@pytest.mark.store
async def test_outcomes_are_kept_once(store: ClickHouseStore) -> None:
    rejected = events.ReleaseRejected(
        event_id="rej-1", at=T0, scenario="s", outcome="conflicted", reason="lost", candidate_id="c"
    )
    synced = events.ServingSynced(
        event_id="syn-1",
        at=T0,
        scenario="s",
        release_id="rel-2",
        load_id="i:2",
        node="n",
        duration_ms=1.5,
    )
    await store.insert_outcomes([published("s"), rejected, synced, inference()])
    await store.insert_outcomes([published("s"), synced])
    reads = ClickHouseReads(store.database)
    assert (await reads.summary("s"))["releases"] == {"conflicted": 1, "published": 1}
    assert len(await store.database.query("SELECT * FROM servings FINAL")) == 1


@pytest.mark.store
async def test_a_sample_that_is_kept_for_evaluation_is_called_so(store: ClickHouseStore) -> None:
    """The trainer gives it back as it does what is stale; to who reads the record it is something else."""
    said = [report("rec-1", report_id=f"rep-{n}") for n in range(2)]
    event = inference(record_id="rec-1")
    samples = [make_samples(one, [record(event)])[0] for one in said]
    refused = [
        events.SampleRefused(
            event_id=f"ref-{n}",
            at=T0,
            scenario="s",
            recipe="sao",
            sample_id=sample.event_id,
            reason=reason,
        )
        for n, (sample, reason) in enumerate(zip(samples, ("held_out", "stale"), strict=True))
    ]
    await store.insert_records([record(event)])
    await store.insert_samples(samples)
    await store.insert_outcomes(refused)
    found = await ClickHouseReads(store.database).record("rec-1")
    assert found is not None
    assert [(row["reason"], row["kept_for_evaluation"]) for row in found["refusals"]] == [
        ("held_out: kept for evaluation, which judges candidates by it", True),
        ("stale", False),
    ]


@pytest.mark.store
async def test_lists_are_newest_first_and_go_on_at_the_cursor(store: ClickHouseStore) -> None:
    made = [
        inference(
            record_id=f"client-{n % 3}-{n}",
            at=n // 2,
            outcome="ok" if n % 2 else "failed",
            scenario="s",
        )
        for n in range(9)
    ]
    await store.insert_records(
        [record(event, session=f"ses-{n % 2}") for n, event in enumerate(made)]
    )
    await store.insert_records([record(inference(scenario="other"))])
    reads = ClickHouseReads(store.database)
    pages: list[str] = []
    cursor = None
    while page := (await reads.page("records", "s", limit=4, cursor=cursor))["data"]:
        pages += [row["record_id"] for row in page]
        cursor = pages[-1]
    assert pages == [
        event.event_id
        for event in sorted(made, key=lambda event: (event.at, event.event_id), reverse=True)
    ]
    failed = await reads.page("records", "s", session="ses-0", outcome="failed", limit=9)
    assert {row["record_id"] for row in failed["data"]} == {event.event_id for event in made[::2]}
    injected = await reads.page("records", "s", session="'; DROP TABLE records; --", limit=9)
    assert injected == {"data": [], "next_cursor": None}
    assert (await reads.summary("s"))["records"] == {"failed": 5, "ok": 4}


@pytest.mark.store
async def test_a_row_that_cannot_be_is_poison_and_leaves_nothing(store: ClickHouseStore) -> None:
    with pytest.raises(Poison, match="refuses a row"):
        await store.insert_records([record(inference()), record(inference(prompt=(-1,)))])
    assert await store.database.query("SELECT * FROM records") == []


@pytest.mark.store
async def test_migrations_are_applied_once_and_only_go_forward(
    database: Database, tmp_path: Path
) -> None:
    assert await database.migrate() == []
    folder = tmp_path / "migrations"
    folder.mkdir()
    for path in MIGRATIONS.glob("*.sql"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "0099_more.sql").write_text("-- more\nALTER TABLE records ADD COLUMN more String;\n")
    assert await database.migrate(folder) == [99]
    assert await database.migrate(folder) == []
    with pytest.raises(
        BadConfig, match=r"0099_more\.sql was applied to this store and is now missing"
    ):
        await database.migrate()
    (folder / "0099_more.sql").write_text("-- other\n")
    with pytest.raises(BadConfig, match="only go forward"):
        await database.migrate(folder)


@pytest.mark.store
async def test_a_server_that_is_not_there_is_unavailable() -> None:
    database = Database.server("http://127.0.0.1:9/default")
    assert database.away == "not connected yet"
    with pytest.raises(Unavailable, match="the ClickHouse server does not answer"):
        await database.query("SELECT 1")
    assert database.away is not None
    await database.close()
