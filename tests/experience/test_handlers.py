"""Batches of events through the handlers into a real store."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY, AsyncMock

import pytest

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import BodyRef, SampleReady
from reefcommon.topics import Topic
from services.experience import handlers
from services.experience.clickhouse import Database, rows
from services.experience.clickhouse.client import MIGRATIONS
from services.experience.domain.conversation import fingerprint
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment, Node, Session
from services.experience.settings import Settings
from tests.experience.conftest import Service, make
from tests.experience.factory import Arrival, arrive, assistant, inference, report, user

pytestmark = pytest.mark.store


def samples(service: Service) -> list[SampleReady]:
    return [event for event in service.published.events if isinstance(event, SampleReady)]


async def test_a_record_and_its_report_become_one_sample(service: Service) -> None:
    record = inference(
        prompt=(1, 2), sampled=(3, 4, 0), logprobs=(-0.1, -1 / 3, -2.5e-8), temperature=0.7
    )
    said = report(record.event_id, score=0.25, feedback={"text": "fine"}, metadata={"step": 3})
    await service.take(record, said)
    (sample,) = samples(service)
    assert sample.tokens == (1, 2, 3, 4, 0)
    assert (sample.prompt_length, sample.loss_mask, sample.logprobs) == (
        2,
        (1, 1, 1),
        (-0.1, -1 / 3, -2.5e-8),
    )
    assert (sample.score, sample.temperature, sample.untrainable) == (0.25, 0.7, None)
    assert sample.messages == (user("hello"), assistant("hi"))
    assert (sample.release_id, sample.load_id, sample.record_ids, sample.report_id) == (
        "rel-1",
        "inc:1",
        (record.event_id,),
        said.event_id,
    )
    view = await service.reads.record(record.event_id)
    assert view is not None
    assert view["record"] == record.model_dump()
    assert [row["state"] for row in view["reports"]] == ["joined"]
    assert [row["sample_id"] for row in view["samples"]] == [sample.event_id]


async def test_a_report_that_comes_first_is_parked_and_joined_when_its_record_comes(
    service: Service,
) -> None:
    """E1, first half."""
    record = inference()
    said = report(record.event_id)
    await service.take(said)
    assert samples(service) == []
    await service.take(record)
    assert [sample.report_id for sample in samples(service)] == [said.event_id]
    assert len(service.handlers.parking) == 0


async def test_a_parked_report_survives_a_restart(service: Service) -> None:
    """E1: parked durably."""
    record = inference()
    await service.take(report(record.event_id))
    after = await service.restarted()
    await after.take(record)
    assert samples(after) == []
    await after.handlers.sweep(caught_up=True)
    assert len(samples(after)) == 1


async def test_a_sweep_that_failed_looks_again(service: Service) -> None:
    """Else a report of an earlier process waited for six sweeps more."""
    record = inference()
    await service.take(report(record.event_id))
    after = await service.restarted()
    await after.take(record)
    parked, after.store.parked = after.store.parked, AsyncMock(side_effect=Unavailable(""))
    with pytest.raises(Unavailable):
        await after.handlers.sweep(caught_up=True)
    after.store.parked = parked
    await after.handlers.sweep(caught_up=True)
    assert len(samples(after)) == 1


async def test_a_receipt_that_nobody_knows_is_dead_after_its_time(service: Service) -> None:
    """E1, second half: parked with a time limit, then dead-lettered, but not while the log is still being read."""
    said = report("rec-unknown")
    await service.take(said)
    service.clock.advance(301)
    await service.handlers.sweep(caught_up=False)
    assert service.graves.buried == []
    await service.handlers.sweep(caught_up=True)
    ((dead, reason),) = service.graves.buried
    assert "unknown receipts after 300 s: rec-unknown" in reason
    assert dead.value == said.model_dump_json(exclude_none=True).encode()
    await service.handlers.sweep(caught_up=True)
    assert len(service.graves.buried) == 1
    assert await service.count("reports") == 1


async def test_a_record_that_comes_after_its_report_was_given_up_still_joins_it(
    service: Service,
) -> None:
    """What becomes of a report depends on what is in the log, not on when it was read: a replay ends the same."""
    record = inference()
    said = report(record.event_id)
    await service.take(said)
    service.clock.advance(301)
    await service.handlers.sweep(caught_up=True)
    assert len(service.graves.buried) == 1
    after = await service.restarted()
    await after.take(record)
    assert [sample.report_id for sample in samples(after)] == [said.event_id]
    states = await service.reads.database.query("SELECT state FROM reports FINAL")
    assert [row["state"] for row in states] == ["joined"]


@pytest.mark.parametrize("looking", ["its own batch", "the sweep"])
async def test_a_record_that_comes_while_its_report_is_looked_at_joins_it(
    service: Service, looking: str
) -> None:
    """They come from two topics. One is handled after the other, so that neither misses the other and none is given up that is joined."""
    record = inference()
    said, coming, records = report(record.event_id), [], service.store.records

    async def looked(needed: set[str]) -> object:
        found = await records(needed)
        if not coming:
            coming.append(asyncio.create_task(service.take(record)))
            await asyncio.wait(coming, timeout=0.2)
        return found

    if looking == "the sweep":
        await service.take(said)
        service.clock.advance(301)
    service.store.records = looked
    await (
        service.take(said) if looking == "its own batch" else service.handlers.sweep(caught_up=True)
    )
    await asyncio.gather(*coming)
    assert [sample.report_id for sample in samples(service)] == [said.event_id]
    states = await service.reads.database.query("SELECT state FROM reports FINAL")
    assert [row["state"] for row in states] == ["joined"]


async def test_a_report_that_is_read_again_has_not_waited_less_for_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that restarts now and then would else never give it up. And however many wait, the sweep looks at all of them."""
    monkeypatch.setattr(handlers, "SWEEP_PAGE", 1)
    reports = [report(f"rec-unknown-{number}") for number in range(3)]
    await service.take(*reports)
    service.clock.advance(200)
    after = await service.restarted()
    await after.take(*reports)
    service.clock.advance(101)
    await after.handlers.sweep(caught_up=True)
    assert sorted(arrival.event.event_id for arrival, _ in service.graves.buried) == sorted(
        said.event_id for said in reports
    )


async def test_two_partitions_share_no_session(service: Service) -> None:
    """There is no order between them: what one says of the other would depend on which was read first."""
    one, two = (
        inference((user("a"),), "b"),
        inference((user("a"), assistant("b"), user("c")), "d", at=1),
    )
    await service.handlers.on_events([arrive(one), replace(arrive(two, 1), key=b"1111")])
    assert await service.count("sessions") == 2


async def test_an_expired_report_that_is_sent_again_from_the_dead_letters_is_joined(
    service: Service,
) -> None:
    record = inference()
    said = report(record.event_id)
    await service.take(said)
    service.clock.advance(301)
    await service.handlers.sweep(caught_up=True)
    await service.take(record, said)
    assert len(samples(service)) == 1


async def test_a_repeated_report_has_one_effect_and_another_content_is_a_conflict(
    service: Service,
) -> None:
    """E2."""
    record = inference()
    said = report(record.event_id, score=1.0, report_id="rep-1")
    await service.take(record, said, said)
    await service.take(said)
    other = report(record.event_id, score=0.0, report_id="rep-1")
    await service.take(other)
    await service.take(other, said)
    assert len(samples(service)) == 1
    assert samples(service)[0].score == 1.0
    assert [reason for _, reason in service.graves.buried] == [
        "conflict: report rep-1 is known with other content"
    ] * 2
    await service.take(
        report(record.event_id, report_id="rep-2"),
        report(record.event_id, score=0.5, report_id="rep-2"),
    )
    assert [sample.score for sample in samples(service)] == [1.0, 1.0]
    assert service.graves.buried[2:] == [
        (ANY, "conflict: report rep-2 is known with other content")
    ]


@pytest.mark.parametrize(
    "method", ["insert_records", "insert_sessions", "insert_samples", "insert_reports"]
)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_write_that_fails_once_is_written_by_the_redelivery(
    service: Service, method: str, when: str
) -> None:
    """E3: nothing is marked done before it is, whichever write fails, and whether or not it had its effect."""
    first = inference((user("a"),), "b", prompt=(1,), sampled=(2,))
    second = inference(
        (user("a"), assistant("b"), user("c")), "d", at=1, prompt=(1, 2, 3), sampled=(4,)
    )
    batch = (first, second, report(first.event_id, second.event_id))
    getattr(service.store, when)[method] = 1
    with pytest.raises(Unavailable):
        await service.take(*batch)
    again = await service.restarted() if when == "after" else service
    await again.take(*batch)
    assert (
        await service.count("records"),
        await service.count("sessions"),
        await service.count("samples"),
    ) == (2, 1, 1)
    assert {sample.event_id for sample in samples(again)} == {samples(again)[0].event_id}
    assert samples(again)[0].tokens == (1, 2, 3, 4)
    (row,) = (await service.reads.page("sessions", "default", limit=9))["data"]
    assert (row["turns"], row["records"]) == (2, 2)


async def test_a_batch_that_was_written_in_part_is_completed_in_order(service: Service) -> None:
    """E3: killed when the first of three turns had its row and no session had."""
    said = [user("a")]
    turns = []
    for number in range(3):
        turns.append(inference(said, str(number), at=number))
        said = [*said, assistant(str(number)), user("on")]
    first = await service.restarted()
    await first.take(turns[0])
    await service.reads.database._run(lambda client: client.command("TRUNCATE TABLE sessions"))
    after = await service.restarted()
    await after.take(*turns)
    (row,) = (await after.reads.page("sessions", "default", limit=9))["data"]
    assert (row["turns"], row["records"], row["last_turn_record_id"]) == (3, 3, turns[2].event_id)


async def test_a_sample_that_was_not_acknowledged_is_published_by_the_redelivery(
    service: Service,
) -> None:
    record = inference()
    batch = (record, report(record.event_id))
    service.published.failures = 1
    with pytest.raises(Unavailable):
        await service.take(*batch)
    again = await service.restarted()
    await again.take(*batch)
    assert len(samples(again)) == 1


async def test_one_report_on_a_session_is_one_trajectory(service: Service) -> None:
    """E6."""
    one = inference((user("a"),), "b", prompt=(1, 2), sampled=(3, 4))
    two = inference(
        (user("a"), assistant("b"), user("c")),
        "d",
        at=1,
        prompt=(1, 2, 3, 4, 5, 6),
        sampled=(7,),
        logprobs=(-0.9,),
    )
    said = report(two.event_id, one.event_id)
    await service.take(one, two, said)
    (sample,) = samples(service)
    assert sample.record_ids == (one.event_id, two.event_id)
    assert (sample.tokens, sample.prompt_length) == ((1, 2, 3, 4, 5, 6, 7), 2)
    assert (sample.loss_mask, sample.logprobs) == ((1, 1, 0, 0, 1), (-0.5, -0.5, 0.0, 0.0, -0.9))
    assert sample.untrainable is None
    assert [message["content"] for message in sample.messages] == ["a", "b", "c", "d"]


async def test_two_conversations_that_begin_alike_are_each_trainable(service: Service) -> None:
    """Untagged, interleaved; then an edited turn. One session, and a sample for each branch."""
    events = []
    for number, (answer, question) in enumerate([("b", "c"), ("B", "C"), ("B", "edited")]):
        answered = 4 if answer == "b" else 5
        said = (user("a"), assistant(answer), user(question))
        first = inference(said[:1], answer, prompt=(1, 2), sampled=(answered,), at=number)
        prompt = (1, 2, answered, 6 + number)
        second = inference(said, "d", prompt=prompt, sampled=(9,), at=number + 5)
        events.append((first, second))
    (one, one2), (two, two2), (_, edited) = events
    reports = [
        report(one.event_id, one2.event_id),
        report(two.event_id, two2.event_id),
        report(edited.event_id),
    ]
    await service.take(one, two, one2, two2, edited, *reports)
    made = samples(service)
    assert [sample.untrainable for sample in made] == [None] * 3
    assert [(sample.tokens, sample.loss_mask) for sample in made] == [
        ((1, 2, 4, 6, 9), (1, 0, 1)),
        ((1, 2, 5, 7, 9), (1, 0, 1)),
        ((1, 2, 5, 8, 9), (1,)),
    ]
    assert len({sample.session_id for sample in made}) == 1


async def test_callers_told_apart_never_share_a_session(service: Service) -> None:
    """Neither by content nor by a tag that both chose; without a caller as before."""
    events = [
        inference((user("a"),), "b", caller=caller, session_tag=tag)
        for tag in (None, "chat-1")
        for caller in ("alice", "bob", "alice", "")
    ]
    await service.take(*events)
    places = [(await service.reads.record(event.event_id) or {})["session_id"] for event in events]
    for alice, bob, again, nobody in (places[:4], places[4:]):
        assert alice == again
        assert len({alice, bob, nobody}) == 3
    assert places[4] == "chat-1"
    assert places[:4] != places[4:]
    after = await service.restarted()
    later = inference((user("x"),), "y", caller="bob", session_tag="chat-1", at=9)
    await after.take(later)
    assert (await after.reads.record(later.event_id) or {})["session_id"] == places[5]


async def test_endless_untagged_traffic_is_bounded_and_its_evictions_are_counted(
    service: Service,
) -> None:
    """E7."""
    small = await service.restarted(Settings(max_open_sessions=10))
    for block in range(5):
        await small.take(*(inference((user(f"{block}-{n}"),)) for n in range(40)))
    assert small.handlers.session_facts() == {"open": 10, "limit": 10, "evicted": 190}
    assert len(small.handlers.book._by_request) == 10
    assert len(small.handlers.book._by_tail) == 10
    assert len(small.handlers.book._unsettled) == 0


async def test_an_evicted_session_is_found_again_in_the_store(service: Service) -> None:
    """E7: a bound on memory is no bound on what is known."""
    small = await service.restarted(Settings(max_open_sessions=1))
    one = inference((user("a"),), "b")
    await small.take(one)
    await small.take(inference((user("other"),)))
    two = inference((user("a"), assistant("b"), user("c")), "d", at=2)
    await small.take(two)
    first, second = await small.reads.record(one.event_id), await small.reads.record(two.event_id)
    assert first is not None
    assert second is not None
    assert (second["session_id"], second["session_turn"]) == (first["session_id"], 1)


async def test_sessions_go_on_after_a_restart(service: Service) -> None:
    one = inference((user("a"),), "b")
    await service.take(one)
    after = await service.restarted()
    assert len(after.handlers.book) == 1
    retry, two = (
        inference((user("a"),), "b2", at=1),
        inference((user("a"), assistant("b"), user("c")), "d", at=2),
    )
    await after.take(retry, two)
    rows = {
        row["record_id"]: row
        for row in (await after.reads.page("records", "default", limit=9))["data"]
    }
    assert [rows[event.event_id]["session_turn"] for event in (one, retry, two)] == [0, 0, 1]
    assert rows[retry.event_id]["retry_of"] == one.event_id
    assert len({row["session_id"] for row in rows.values()}) == 1


async def test_stored_ids_are_the_engines(service: Service) -> None:
    """E8: a text whose decode-then-encode differs, with EOS and control tokens, is trained on the stored ids; a mismatch is not."""
    exact = inference(
        answer="the same text",
        prompt=(0, 2**32 - 1),
        sampled=(7, 7, 2, 0),
        logprobs=(-1e-300, -0.0, -5.5, -1e30),
    )
    short = inference(answer="x", sampled=(1, 2, 3), logprobs=(-0.1, -0.2))
    await service.take(exact, short)
    await service.take(report(exact.event_id), report(short.event_id))
    by_record = {sample.record_ids[0]: sample for sample in samples(service)}
    sample = by_record[exact.event_id]
    assert sample.tokens == (0, 2**32 - 1, 7, 7, 2, 0)
    assert sample.logprobs == (-1e-300, -0.0, -5.5, -1e30)
    refused = by_record[short.event_id]
    assert (refused.untrainable, refused.tokens, refused.logprobs) == ("length_mismatch", (), ())
    assert refused.messages[-1] == assistant("x")


async def test_a_repeated_record_changes_nothing_and_another_content_is_a_conflict(
    service: Service,
) -> None:
    record = inference()
    await service.take(record, record)
    await service.take(record)
    await service.take(record.model_copy(update={"model": "other"}))
    assert await service.count("records") == 1
    assert [reason for _, reason in service.graves.buried] == [
        f"conflict: {record.event_id} is known with other content"
    ]
    view = await service.reads.record(record.event_id)
    assert view is not None
    assert view["record"]["model"] == "reef"


async def test_a_record_of_another_scenario_is_unknown_to_a_report(service: Service) -> None:
    """Word for word as if it did not exist, whichever of the two comes first."""
    early, late = inference(scenario="other"), inference(scenario="other")
    await service.take(early, *(report(one) for one in (early.event_id, late.event_id, "rec-no")))
    await service.take(late)
    await service.handlers.sweep(caught_up=True)
    states = await service.reads.database.query("SELECT state FROM reports FINAL")
    assert [row["state"] for row in states] == ["parked"] * 3
    service.clock.advance(301)
    await service.handlers.sweep(caught_up=True)
    assert samples(service) == []
    assert {reason.partition(": ")[0] for _, reason in service.graves.buried} == {
        "unknown receipts after 300 s"
    }
    assert len(service.graves.buried) == 3


async def test_status_names_the_report_that_waits_longest_and_its_end(service: Service) -> None:
    assert service.handlers.waiting_facts() is None
    first = report("rec-unknown")
    await service.take(first)
    service.clock.advance(60)
    await service.take(report("rec-other"))
    facts = service.handlers.waiting_facts()
    assert facts is not None
    assert (facts["report_id"], facts["references"]) == (first.event_id, ("rec-unknown",))
    assert (facts["given_up_at"] - facts["since"]).total_seconds() == 300


async def test_a_report_is_given_up_once_its_dead_letter_is_acknowledged(service: Service) -> None:
    await service.take(report("rec-unknown"))
    service.clock.advance(301)
    service.graves.failures = 1
    with pytest.raises(Unavailable):
        await service.handlers.sweep(caught_up=True)
    await service.handlers.sweep(caught_up=True)
    assert len(service.graves.buried) == 1
    states = await service.reads.database.query("SELECT state FROM reports FINAL")
    assert [row["state"] for row in states] == ["expired"]


async def test_references_that_can_never_be_joined_are_poison(service: Service) -> None:
    """G11, where the gateway could not know."""
    earlier = report("rec-1").event_id
    await service.take(report(), report("rec-1", "rec-1"), report("rec-1", earlier))
    reasons = [reason for _, reason in service.graves.buried]
    assert reasons == ["references must be non-empty and unique"] * 2 + [
        f"references must be receipts of exchanges, not of reports: {earlier}"
    ]
    assert await service.count("reports") == 0


async def test_an_undecodable_event_is_dead_alone(service: Service) -> None:
    """E4: the others of its batch went through."""
    good = inference()
    bad = Arrival("reef.inferences.v1", 3, 7, b"k", b"{", None, "ValidationError: broken")
    await service.handlers.on_events([arrive(inference()), bad, arrive(good)])
    assert await service.count("records") == 2
    assert service.graves.buried == [(bad, "ValidationError: broken")]


async def test_a_row_that_the_store_refuses_is_dead_alone(service: Service) -> None:
    good, bad = inference(), inference(prompt=(1, -1))
    await service.take(inference(), bad, good)
    assert await service.count("records") == 2
    assert [arrival.event for arrival, _ in service.graves.buried] == [bad]


async def test_a_large_body_is_read_for_its_session_and_its_sample(service: Service) -> None:
    ref = BodyRef(uri="file:///x", sha256="a" * 64, size_bytes=3)
    whole = inference((user("a"),), "b")
    service.bodies.kept[ref.sha256] = {"request": whole.request, "response": whole.response}
    checked = inference(request=None, response=None, body_ref=ref)
    lost = inference(
        request=None,
        response=None,
        body_ref=BodyRef(uri="file:///y", sha256="b" * 64, size_bytes=3),
    )
    following = inference((user("a"), assistant("b"), user("c")), "d", at=1)
    await service.take(checked, lost, following, report(checked.event_id))
    rows = {
        row["record_id"]: row
        for row in (await service.reads.page("records", "default", limit=9))["data"]
    }
    assert (
        rows[checked.event_id]["session_id"]
        == rows[following.event_id]["session_id"]
        != rows[lost.event_id]["session_id"]
    )
    assert samples(service)[0].messages == (user("a"), assistant("b"))


async def test_a_store_of_before_the_trees_goes_on(tmp_path: Path) -> None:
    """Its sessions are continued, its records are joined, and its samples are listed."""
    before = tmp_path / "before"
    before.mkdir()
    for path in sorted(MIGRATIONS.glob("000[1-4]*.sql")):
        shutil.copy(path, before)
    database = Database.embedded(tmp_path / "chdb")
    await database.migrate(before)
    one = inference((user("a"),), "b", prompt=(1,), sampled=(2,))
    prints = fingerprint(one.request or {}, one.response, one.api, shard=b"0000")
    session = Session(
        "ses-old", "default", False, "", 1, 1, one.at, one.at, one.event_id,
        (Node(one.event_id, 0, prints.request, prints.tails),),
    )  # fmt: skip
    row = Record(one, "digest", Assignment("ses-old", 0, 1))
    for table, columns, item in (
        ("records", rows.RECORDS, row),
        ("sessions", rows.SESSIONS, session),
    ):
        new = {"caller", "nodes", "request_hashes", "sampling", "loads", "session_end"}
        new |= {"harness", "dialect"}
        old = {name: read for name, read in columns.items() if name not in new}
        await database.insert(table, list(old), [[read(item)] for read in old.values()])
    assert await database.migrate() == [5, 6, 7, 8]
    service = make(database, Settings())
    await service.handlers.on_start()
    retry = inference((user("a"),), "B", prompt=(1,), sampled=(5,), at=1)
    two = inference(
        (user("a"), assistant("b"), user("c")), "d", at=2, prompt=(1, 2, 3), sampled=(4,)
    )
    await service.take(retry, two, report(one.event_id, two.event_id))
    (sample,) = samples(service)
    assert (sample.tokens, sample.session_id) == ((1, 2, 3, 4), "ses-old")
    assert (await service.reads.record(retry.event_id) or {})["retry_of"] == one.event_id
    await database.close()


@pytest.mark.parametrize("first", ["the records", "the reports"])
async def test_a_report_whose_sample_is_refused_is_dead_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Its record stays, and the reports beside it are joined; also if the record comes last."""
    publish = service.published.publish

    async def refuse(event: SampleReady, topic: Topic, *, shard: str | None = None) -> None:
        if event.score == 9:
            raise Poison("no broker takes it")
        await publish(event, topic, shard=shard)

    monkeypatch.setattr(service.published, "publish", refuse)
    records = [inference((user(f"q{n}"),)) for n in range(3)]
    reports = [
        report(record.event_id, score=score)
        for record, score in zip(records, (1.0, 9.0, 2.0), strict=True)
    ]
    for batch in (records, reports) if first == "the records" else (reports, records):
        await service.take(*batch)
    await service.handlers.sweep(caught_up=True)
    assert {sample.score for sample in samples(service)} == {1.0, 2.0}
    ((buried, reason),) = service.graves.buried
    assert (buried.event, reason) == (reports[1], "no broker takes it")
    states = await service.reads.database.query("SELECT state FROM reports FINAL ORDER BY score")
    assert [row["state"] for row in states] == ["joined", "joined", "refused"]
    assert await service.count("records") == 3
