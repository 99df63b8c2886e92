"""The lines that `reef serve` prints: events of the loop, traffic, refusals, failures."""

import asyncio
from collections import Counter
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from reefcli.heartbeat import Heartbeat
from reefcli.loop_events import describe, follow
from reefcommon.events import DeadLettered, ReleaseRejected, StepCompleted
from reefkit.bodies import FilesystemBodies
from reefkit.kafka_topics import ensure_topics

AT = datetime(2026, 1, 1, tzinfo=UTC)


def event(cls, **facts):
    return cls.model_validate({"event_id": "e", "at": AT, "scenario": "default", **facts})


def test_a_step_says_how_much_the_policy_loss_masked():
    step = event(
        StepCompleted, recipe="r", step=3, base_release_id="r0", sample_ids=("a", "b"),
        metrics={"reward_mean": 0.5, "pg_clipfrac": 0.25}, duration_s=1.0, candidate_id="c",
    )  # fmt: skip
    assert describe(step) == "step 3    2 samples, reward 0.50, masked 25%, 1.0 s: candidate"


def test_a_dead_letter_is_one_line_and_says_which_command_helps():
    letter = event(
        DeadLettered, group="trainer-samples", topic="reef.samples.v1", partition=1, offset=7,
        value="", reason="ValueError: a\nb", attempts=3,
    )  # fmt: skip
    line = describe(letter)
    assert "\n" not in line
    assert "reef.samples.v1 [1] 7: ValueError: a (`reef dlq list`)" in line


def test_a_rejection_is_told_once_by_its_verdict():
    rejected = event(ReleaseRejected, outcome="rejected", reason="lost", candidate_id="c")
    assert describe(rejected) is None
    aborted = event(ReleaseRejected, outcome="aborted", reason="no node", candidate_id="c")
    assert describe(aborted) == "no release: aborted, no node"


@pytest.mark.broker
async def test_events_of_the_start_are_told(kafka_bootstrap: str, tmp_path: Path) -> None:
    """They were not: the lines began at the end that the log had when all was up."""
    await ensure_topics(kafka_bootstrap)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, enable_idempotence=False)
    await producer.start()
    for n in range(4):
        facts = {"event_id": f"e{n}", "at": AT + timedelta(seconds=n), "candidate_id": "c"}
        sent = event(ReleaseRejected, outcome="aborted", reason="no node", **facts)
        value = sent.model_dump_json().encode()
        await producer.send_and_wait("reef.releases.v1", value, key=b"default")
    await producer.stop()
    found = follow(kafka_bootstrap, FilesystemBodies(tmp_path), AT + timedelta(seconds=1))
    async with asyncio.timeout(60), aclosing(found) as events:
        assert [(await anext(events)).event_id for _ in range(2)] == ["e2", "e3"]


def metrics(ok: int, failed: int) -> str:
    name, route = "reef_gateway_requests_total", 'route="/v1/chat/completions"'
    return (
        f'# TYPE {name} counter\n{name}{{{route},status="200"}} {ok}\n'
        f'{name}{{{route},status="503"}} {failed}\n{name}{{route="/readyz",status="200"}} 99\n'
    )


@pytest.mark.parametrize(("after", "said"), [((9, 1), "traffic  6 requests in 30 s (0.2 a second), 1 failed"), ((4, 0), None)])  # fmt: skip
async def test_traffic_is_told_if_there_was_any(after, said):
    lines: list[str] = []
    pages = iter([metrics(4, 0), metrics(*after)])
    heart = Heartbeat(
        "", FilesystemBodies(Path("none")), {"gateway": "http://gateway"}, lines.append
    )
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, text=next(pages)))
    async with httpx.AsyncClient(transport=transport) as http:
        await heart.tell_traffic(http)
        heart._refused = Counter({"stale": 12, "held_out": 3, "of its own": 1})
        await heart.tell_traffic(http)
    words = "12 of weights that are too old, 3 held out, to judge candidates by, 1 of its own"
    assert lines[-1] == f"refused  16 samples for training: {words}"
    assert (lines[0] if said else len(lines)) == (said or 1)
