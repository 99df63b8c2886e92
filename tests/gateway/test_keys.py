"""Receipts that clients choose are exact: after Redis has lost its memory, after any time, and where the store is behind or away."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from services.gateway.domain.errors import ApiError
from services.gateway.domain.keys import KeyEntry
from services.gateway.keys import known
from services.gateway.keys.known import Keys

from .conftest import Bench, bench_of
from .fakes import MemoryKeyStore, MemoryReads

KEY = {"x-reef-agent-record-id": "order-1"}


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits only a moment for services that cannot say yet."""
    monkeypatch.setattr(known, "WAIT_S", 0.3)
    monkeypatch.setattr(known, "POLL_S", 0.02)


def forget(bench: Bench, ago_s: float = 3600.0) -> None:
    """Redis is empty, and has been noted as such some time ago."""
    bench.key_store.lose()
    bench.key_store.remembers_since = time.time() - ago_s


def stored(bench: Bench, record: Any) -> dict[str, Any]:
    """What the experience service says of a record."""
    names = ("scenario", "outcome", "status", "stream", "api", "release_id", "response", "error")
    return {
        "kind": "inference",
        "digest": record.idempotency_digest,
        "body_ref": None,
        **{name: getattr(record, name) for name in names},
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_that_redis_has_lost_gets_the_same_receipt_and_content(
    bench: Bench, stream: bool
) -> None:
    """G7, for ever: the same body is answered from the record, another body is 409, and there is one upstream call and one record."""
    client = bench.openai()
    first = await bench.chat(headers=KEY, stream=stream)
    (record,) = bench.log.records
    forget(bench)
    bench.reads.rows["/keys/order-1"] = stored(bench, record)
    again = await bench.chat(headers=KEY, stream=stream)
    assert again.status_code == 200
    for name in ("x-reef-agent-record-id", "x-reef-release-id", "content-type"):
        assert again.headers[name] == first.headers[name], name
    if stream:
        assert again.text.endswith("data: [DONE]\n\n")
        assert '"choices":[]' not in again.text
        bench.key_store.entries.clear()
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="reef",
                messages=[
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Hi"},
                ],
                stream=True,
                extra_headers=KEY,
            )
        ]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == (record.response or {})["choices"][0]["message"]["content"]
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == ["stop"]
    else:
        assert again.json() == first.json()
    other = await bench.chat(headers=KEY, stream=stream, temperature=0.3)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "id_conflict")
    assert (len(bench.engine.requests), len(bench.log.records)) == (1, 1)
    third = await bench.chat(headers=KEY, stream=stream)
    assert third.content == again.content


async def test_a_new_key_is_new_once_that_is_certain(bench: Bench) -> None:
    forget(bench)
    assert (await bench.chat(headers=KEY)).status_code == 200
    assert len(bench.log.records) == 1


@pytest.mark.parametrize("why", ["away", "behind", "just lost"])
async def test_where_nobody_can_say_nothing_is_done(bench: Bench, why: str) -> None:
    """503 with when to come again, nothing asked of the engine, and the key stays free. What has no key is answered as ever."""
    forget(bench, 1.0 if why == "just lost" else 3600.0)
    bench.reads.away = why == "away"
    bench.reads.handled_until = time.time() - 7200 if why == "behind" else float("inf")
    refused = await bench.chat(headers=KEY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "keys_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    receipt = (await bench.chat()).headers["x-reef-agent-record-id"]
    report = await bench.report(score=1.0, references=[receipt], agent_record_id="rep-key")
    assert report.status_code == 503
    assert (len(bench.engine.requests), len(bench.log.reports), bench.key_store.entries) == (
        1,
        0,
        {},
    )
    forget(bench)
    bench.reads.away, bench.reads.handled_until = False, float("inf")
    assert (await bench.chat(headers=KEY)).status_code == 200
    assert (
        await bench.report(score=1.0, references=[receipt], agent_record_id="rep-key")
    ).status_code == 202


@pytest.mark.parametrize(
    ("ended_ago_s", "spooled_ago_s", "known_new"),
    [
        (None, 7200, False),
        (None, 1800, True),
        (60, 7200, False),
        (60, 90, False),
        (60, 30, True),
        (60, None, True),
    ],
)
async def test_an_event_in_this_gateways_spool_is_not_in_the_store_yet(
    ended_ago_s: float | None, spooled_ago_s: float | None, known_new: bool
) -> None:
    """Redis remembers an hour; an older spooled event, or one of the ended work, may have the key."""
    store, reads, now = MemoryKeyStore(), MemoryReads(), time.time()
    store.remembers_since = now - 3600
    waiting = None if spooled_ago_s is None else now - spooled_ago_s
    ended_at = None if ended_ago_s is None else now - ended_ago_s
    keys = Keys(store, reads, 30.0, lambda: waiting)
    if known_new:
        assert await keys.find("k", ended_at) is None
    else:
        with pytest.raises(ApiError) as refused:
            await keys.find("k", ended_at)
        assert refused.value.status == 503
    until = float(reads.asked[0][1]["until"])
    assert until == (store.remembers_since if ended_at is None else ended_at)


async def test_a_store_that_fails_has_said_nothing() -> None:
    class Broken(MemoryReads):
        async def get(
            self, path: str, query: dict[str, str] | None = None, *, timeout_s: float = 10.0
        ) -> tuple[int, bytes]:
            return 500, b'{"complete": true}'

    with pytest.raises(ApiError):
        await Keys(MemoryKeyStore(), Broken(), 30.0).find("k")


async def test_unknown_keys_wait_for_the_store_and_others_do_not(bench: Bench) -> None:
    """While it is away: 503 at once for a key that Redis does not know; a known one is answered."""
    first = await bench.chat(headers=KEY)
    bench.reads.away = True
    assert (await bench.chat(headers=KEY)).content == first.content
    assert (await bench.chat(headers=KEY, temperature=0.1)).status_code == 409
    refused = await bench.chat(headers={"x-reef-agent-record-id": "order-2"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "keys_unavailable")
    assert refused.headers["retry-after"] == "2"
    assert (await bench.chat()).status_code == 200
    bench.reads.away = False
    assert (await bench.chat(headers={"x-reef-agent-record-id": "order-2"})).status_code == 200


@pytest.mark.parametrize("why", ["redis is fresh", "store is behind"])
async def test_a_keyed_request_waits_a_moment_instead_of_503(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """As on a fresh stack: it is answered as soon as it can be said, and its key is free meanwhile."""
    monkeypatch.setattr(known, "WAIT_S", 30.0)
    monkeypatch.setattr(known, "SPREAD_S", 0.0)
    if why == "redis is fresh":
        forget(bench, 0.0)
    else:
        forget(bench)
        bench.reads.handled_until = 0.0
    asked = asyncio.create_task(bench.chat(headers=KEY))
    while len(bench.reads.asked) < 2:
        await asyncio.sleep(0.01)
    assert bench.engine.requests == []
    bench.reads.handled_until = float("inf")
    assert (await asked).status_code == 200
    assert len(bench.log.records) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_log_did_not_confirm_is_asked_of_the_store_before_it_is_done_again(
    bench: Bench, stream: bool
) -> None:
    """The event may be there all the same: the key is neither free nor answered until the store has read everything that came until now."""
    bench.log.unconfirmed = True
    told = await bench.chat(headers=KEY, stream=stream)
    assert told.status_code == (200 if stream else 503)
    assert '"not_durable"' in told.text
    bench.log.unconfirmed = False
    (record,) = bench.log.records
    bench.reads.handled_until = time.time() - 60  # the store has not come to it yet
    ended_at = [KeyEntry.decode(data).ended_at for data in bench.key_store.entries.values()]
    told = await bench.chat(headers=KEY, stream=stream)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "keys_unavailable")
    # The time that the store must reach does not move with the attempts.
    assert [KeyEntry.decode(data).ended_at for data in bench.key_store.entries.values()] == ended_at
    assert {float(asked["until"]) for _, asked in bench.reads.asked[1:]} == set(ended_at)
    bench.reads.rows["/keys/order-1"] = stored(bench, record)
    again = await bench.chat(headers=KEY, stream=stream)
    assert again.status_code == 200
    content = (record.response or {})["choices"][0]["message"]["content"]
    assert content in again.text
    assert '"not_durable"' not in again.text
    assert (len(bench.engine.requests), len(bench.log.records)) == (1, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_never_reached_the_log_is_done_again(bench: Bench, stream: bool) -> None:
    bench.log.broken = True
    await bench.chat(headers=KEY, stream=stream)
    bench.log.broken = False
    again = await bench.chat(headers=KEY, stream=stream)
    assert again.status_code == 200
    assert '"not_durable"' not in again.text
    assert len(bench.log.records) == 1


async def test_a_lease_that_ran_out_says_nothing_of_what_its_gateway_had_written(
    bench: Bench,
) -> None:
    """Killed between record and note: only a store that has read on until then can say."""
    await bench.chat(headers=KEY)
    done = KeyEntry.decode(bench.key_store.entries["order-1"])
    bench.key_store.entries["order-1"] = replace(done, state="open", answer=None).encode()
    bench.reads.handled_until = time.time() - 1
    told = await bench.chat(headers=KEY)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "keys_unavailable")
    assert len(bench.engine.requests) == 1


async def test_what_was_refused_is_tried_again_without_asking_the_store(bench: Bench) -> None:
    """The engine's failure is recorded under a receipt of Reef's own, so that nothing can lie under the key: no store has to say so."""
    assert (await bench.chat("limited", headers=KEY)).status_code == 429
    bench.reads.away, asked = True, list(bench.reads.asked)
    assert (await bench.chat(headers=KEY)).status_code == 200
    assert bench.reads.asked == asked
    assert (await bench.chat(headers=KEY, temperature=0.3)).status_code == 409, "now it is used"


async def test_a_key_that_is_free_is_nobody_elses(bench: Bench) -> None:
    """A report may take it, and a report that refers to it waits for a record, as for any receipt that nobody knows."""
    receipt = (await bench.chat()).headers["x-reef-agent-record-id"]
    assert (await bench.chat("limited", headers=KEY)).status_code == 429
    assert (
        await bench.report(score=1.0, references=[receipt], agent_record_id="order-1")
    ).status_code == 202


async def test_a_request_without_a_key_asks_nobody(bench: Bench) -> None:
    for _ in range(3):
        await bench.chat()
    assert bench.reads.asked == []


async def test_a_report_key_is_exact_too(bench: Bench) -> None:
    receipt = (await bench.chat()).headers["x-reef-agent-record-id"]
    body = {"score": 1.0, "references": [receipt], "agent_record_id": "said-1"}
    assert (await bench.report(**body)).status_code == 202
    (said,) = bench.log.reports
    forget(bench)
    bench.reads.rows["/keys/said-1"] = {
        "kind": "report",
        "digest": said.content_digest,
        "scenario": "default",
    }
    assert (await bench.report(**{**body, "score": 0.0})).status_code == 409
    assert (await bench.report(**body)).status_code == 202
    assert {report.content_digest for report in bench.log.reports} == {said.content_digest}
    assert (await bench.chat(headers={"x-reef-agent-record-id": "said-1"})).status_code == 409, (
        "a report's id is no exchange's"
    )


async def test_a_failure_that_was_recorded_is_repeated_as_it_was(bench: Bench) -> None:
    """400 of the engine: the client's fault, so the key is used; what it was told then is what it is told now."""
    bench.reads.rows["/keys/order-1"] = {}
    forget(bench)
    digest = ""

    async def claim(key: str, entry: KeyEntry, *, lease_s: float) -> KeyEntry | None:
        nonlocal digest
        digest = entry.digest
        bench.reads.rows["/keys/order-1"] = {
            "kind": "inference", "digest": digest, "scenario": "default", "outcome": "failed", "status": 400, "stream": False,
            "api": "chat.completions", "release_id": None, "response": None, "error": '{"error": {"message": "bad"}}', "body_ref": None,
        }  # fmt: skip
        return None

    bench.key_store.claim = claim  # type: ignore[method-assign]
    told = await bench.chat(headers=KEY)
    assert (told.status_code, told.json()["error"]["message"]) == (400, "bad")
    assert bench.engine.requests == []


async def test_an_exchange_that_was_cut_off_by_a_stop_is_told_as_that(bench: Bench) -> None:
    """Its record is there, aborted: a second one under the same receipt would contradict it."""
    await bench.chat(headers=KEY)
    (record,) = bench.log.records
    forget(bench)
    bench.reads.rows["/keys/order-1"] = {
        **stored(bench, record),
        "outcome": "aborted",
        "response": None,
        "status": 499,
    }
    told = await bench.chat(headers=KEY)
    assert (told.status_code, told.json()["error"]["code"]) == (409, "exchange_aborted")
    assert (len(bench.engine.requests), bench.key_store.entries) == (1, {})


async def test_work_that_goes_on_while_redis_is_emptied_keeps_its_key() -> None:
    """The renewal takes the key again, so that another gateway does not do the work a second time."""
    async with bench_of(key_lease_s=0.3) as bench:
        bench.engine.delay_s = 1.0
        first = asyncio.create_task(bench.chat(headers=KEY))
        while not bench.key_store.entries:
            await asyncio.sleep(0.01)
        bench.key_store.lose()
        while not bench.key_store.entries:
            await asyncio.sleep(0.01)
        assert not first.done()
        assert (await first).status_code == 200
