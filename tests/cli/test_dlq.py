"""`reef dlq` on a real broker: what is there, what becomes of it, and that doing it twice does nothing."""

import asyncio
import json
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord
from typer.testing import CliRunner

from reefcli import dead_letters
from reefcli.main import cli
from reefcommon import topics
from reefcommon.events import DeadLettered
from reefkit.dead_letters import dead_letter
from reefkit.kafka_topics import ensure_topics
from tests.replay.reading import everything

pytestmark = pytest.mark.broker


def reef(bootstrap: str, *words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(
        cli, ["dlq", *words, "--bootstrap", bootstrap, *(("--json",) if code == 0 else ())]
    )
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.output


def letter(
    group: str, offset: int, reason: str, value: bytes = b'{"scenario": "dlq-test", "n": 1}'
) -> DeadLettered:
    record: ConsumerRecord[bytes, bytes] = ConsumerRecord(
        topics.FEEDBACK.name,
        3,
        offset,
        0,
        0,
        b"\xffkey",
        value,
        None,
        4,
        len(value),
        (("traceparent", b"00-a"), ("x", b"\xff")),
    )
    return dead_letter(record, group=group, reason=reason, attempts=2)


async def bury(bootstrap: str, *letters: DeadLettered) -> None:
    await ensure_topics(bootstrap)
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=False
    ) as producer:
        for one in letters:
            await producer.send_and_wait(
                topics.FEEDBACK.dead, one.model_dump_json(exclude_none=True).encode()
            )
        await producer.send_and_wait(topics.FEEDBACK.dead, b"not a letter")


async def test_dead_letters_are_listed_shown_retried_and_dropped_once(kafka_bootstrap: str) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    one, two, three = (
        letter(group, 11, "Poison: a"),
        letter(group, 12, "Poison: b", b"\xff not json"),
        letter(group, 13, "unknown receipts"),
    )
    await bury(kafka_bootstrap, one, two, one, three)  # at least once: the first was given up twice

    def run(*words: str, code: int = 0) -> Any:
        return asyncio.to_thread(reef, kafka_bootstrap, *words, code=code)

    rows = await run("list", "--group", group)
    assert {
        row["id"]: (row["times"], row["reason"], row["topic"], row["partition"], row["offset"])
        for row in rows
    } == {
        one.event_id: (2, "Poison: a", topics.FEEDBACK.name, 3, 11),
        two.event_id: (1, "Poison: b", topics.FEEDBACK.name, 3, 12),
        three.event_id: (1, "unknown receipts", topics.FEEDBACK.name, 3, 13),
    }
    assert [row["id"] for row in await run("list", "--group", group, "--reason", "UNKNOWN")] == [
        three.event_id
    ]
    assert (await run("show", one.event_id[:20]))["event"] == {"scenario": "dlq-test", "n": 1}
    assert (await run("show", two.event_id))["event"] == "\\xff not json"

    assert await run("retry", one.event_id, two.event_id[5:]) == {
        "retried": [one.event_id, two.event_id],
        "handled_before": [],
    }
    assert await run("retry", one.event_id) == {"retried": [], "handled_before": [one.event_id]}
    assert await run("drop", "--all", "--group", group) == {
        "dropped": [three.event_id],
        "handled_before": [],
    }
    assert await run("drop", "--all", "--group", group) == {"dropped": [], "handled_before": []}
    assert await run("list", "--group", group) == []
    handled = {
        row["id"]: row["handled"] for row in await run("list", "--group", group, "--handled")
    }
    assert handled == {one.event_id: "retried", two.event_id: "retried", three.event_id: "dropped"}

    again = [
        record
        for record in await everything(kafka_bootstrap, topics.FEEDBACK.name)
        if record.key == b"\xffkey"
    ]
    assert sorted(record.value for record in again) == sorted(
        [b'{"scenario": "dlq-test", "n": 1}', b"\xff not json"]
    )
    assert {(record.partition, record.headers) for record in again} == {
        (3, (("traceparent", b"00-a"), ("x", b"\xff")))
    }

    await bury(
        kafka_bootstrap, one
    )  # redelivered to its consumer after it was dealt with: still dealt with
    assert await run("list", "--group", group) == []


async def test_what_is_not_there_or_not_clear_says_so(kafka_bootstrap: str) -> None:
    await ensure_topics(kafka_bootstrap)
    assert "no dead letter nonsense" in await asyncio.to_thread(
        reef, kafka_bootstrap, "show", "nonsense", code=1
    )
    assert "which ones?" in await asyncio.to_thread(reef, kafka_bootstrap, "retry", code=1)
    assert "which ones?" in await asyncio.to_thread(
        reef, kafka_bootstrap, "drop", "x", "--all", code=1
    )
    assert "no broker answers" in await asyncio.to_thread(reef, "127.0.0.1:9", "list", code=1)


def test_letters_of_earlier_versions_have_no_headers_and_a_key_as_text() -> None:
    letters = dead_letters.Letters()
    old = letter("g", 1, "r").model_copy(
        update={"key_base64": None, "headers": None, "key": "abcd"}
    )
    letters.take(old.model_dump_json(exclude_none=True).encode())
    (found,) = letters.named([old.event_id])
    assert (found.key, found.headers) == (b"abcd", [])


def test_a_mistyped_topic_is_no_good_news() -> None:
    shown = CliRunner().invoke(cli, ["dlq", "list", "--topic", "reef.feedbak.v1"])
    assert shown.exit_code != 0
    assert (
        "there is no topic 'reef.feedbak.v1'; there are reef.inferences.v1"
        in f"{shown.output} {shown.exception}"
    )


def test_help_teaches() -> None:
    shown = CliRunner().invoke(cli, ["dlq", "--help"]).output
    for command in ("list", "show", "retry", "drop"):
        assert command in shown
        assert "reef dlq" in CliRunner().invoke(cli, ["dlq", command, "--help"]).output
