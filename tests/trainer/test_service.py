"""The trainer as a process of its own, on the real broker and the real release heads."""

import asyncio
import os
import signal
import socket
import sys
import uuid
from pathlib import Path

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from pydantic import TypeAdapter, ValidationError

from reefcommon import topics
from reefcommon.events import CandidateProposed, Event, Learning, ReleasePublished
from reefkit.kafka_topics import ensure_topics
from tests.recipes.samples import AT, sample
from tests.trainer.rig import release

pytestmark = [pytest.mark.broker, pytest.mark.redis, pytest.mark.lfs]

CONFIG = """
reef:
  recipe: tests.trainer.counting:CountingRecipe
  scenario: {scenario}
  batch_size: 2
model: tiny
evaluation:
  tasks: [hello]
  score: recipes.sao.examples.dictionary.tasks:score
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def start(home: Path, kafka: str, redis: str, port: int) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(Path.cwd() / "libs")]),
        "REEF_CONFIG": str(home / "serve.yaml"),
        "REEF_STATE_DIR": str(home / "state"),
        "REEF_KAFKA_BOOTSTRAP": kafka,
        "REEF_REDIS_URL": redis,
        "REEF_MODEL_PATH": str(home),
        "REEF_TRAINER_PORT": str(port),
    }
    with (home / "trainer.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.trainer", env=environment, stderr=log, stdout=log
        )


async def stop(process: asyncio.subprocess.Process, how: signal.Signals) -> int:
    process.send_signal(how)
    async with asyncio.timeout(60):
        return await process.wait()


async def send(kafka: str, *sent: tuple[Event, topics.Topic]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka, acks="all") as producer:
        for event, topic in sent:
            await producer.send_and_wait(
                topic.name,
                event.model_dump_json(exclude_none=True).encode(),
                key=event.scenario.encode(),
            )


async def read(
    kafka: str, scenario: str, topic: topics.Topic, adapter: TypeAdapter, wanted: int
) -> list:
    """The first `wanted` events of this scenario; the same id again is a repeat."""
    found: dict[str, Event] = {}
    async with (
        AIOKafkaConsumer(
            topic.name, bootstrap_servers=kafka, auto_offset_reset="earliest"
        ) as consumer,
        asyncio.timeout(120),
    ):
        async for record in consumer:
            try:
                event = adapter.validate_json(record.value)
            except ValidationError:
                continue  # the broker is shared with tests that write what is no event
            if event.scenario == scenario:
                found.setdefault(event.event_id, event)
                if len(found) == wanted:
                    break
    return list(found.values())


async def test_samples_become_a_candidate_across_a_kill(tmp_path, own_kafka_bootstrap, redis_url):
    """T1, on the real broker: killed with `kill -9` while it waits for the verdict, it goes on and trains nothing twice."""
    scenario = f"t-{uuid.uuid4().hex[:8]}"
    (tmp_path / "serve.yaml").write_text(CONFIG.format(scenario=scenario))
    await ensure_topics(own_kafka_bootstrap)
    port = free_port()
    head = release(5).model_copy(update={"scenario": scenario})
    published = ReleasePublished(event_id="r5", at=AT, scenario=scenario, release=head)
    batch = [sample(i, scenario=scenario) for i in range(5)]
    process = await start(tmp_path, own_kafka_bootstrap, redis_url, port)
    try:
        await send(
            own_kafka_bootstrap,
            (published, topics.RELEASES),
            *((one, topics.SAMPLES) for one in batch),
        )
        (candidate,) = await read(
            own_kafka_bootstrap, scenario, topics.CANDIDATES, TypeAdapter(CandidateProposed), 1
        )
        assert candidate.lineage.sample_ids == ("smp-0", "smp-1")
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}/status") as response,
        ):
            (facts,) = (await response.json())["bindings"].values()
        assert facts["samples"]["used"] == 2
        await stop(process, signal.SIGKILL)

        process = await start(tmp_path, own_kafka_bootstrap, redis_url, port)
        won = head.model_copy(
            update={
                "release_id": "r6",
                "sequence": 6,
                "load_id": "run:6",
                "candidate_id": candidate.event_id,
            }
        )
        won = won.model_copy(
            update={
                "kind": "lora",
                "content_id": candidate.content_id,
                "contents": {"lora": candidate.content_id},
            }
        )
        fresh = [sample(i, scenario=scenario, load_id="run:6") for i in (7, 8)]
        await send(
            own_kafka_bootstrap,
            (
                ReleasePublished(event_id="r6", at=AT, scenario=scenario, release=won),
                topics.RELEASES,
            ),
            *((one, topics.SAMPLES) for one in (*batch, *fresh)),
        )
        told = await read(own_kafka_bootstrap, scenario, topics.TRAINING, TypeAdapter(Learning), 5)
        steps = [event for event in told if event.type == "step.completed.v1"]
        refused = [event for event in told if event.type == "sample.refused.v1"]
        assert [step.sample_ids for step in steps] == [("smp-0", "smp-1"), ("smp-7", "smp-8")]
        assert [step.step for step in steps] == [1, 2]
        assert {(event.sample_id, event.reason, event.lag) for event in refused} == {
            (f"smp-{i}", "stale", 1) for i in (2, 3, 4)
        }
    finally:
        assert await stop(process, signal.SIGTERM) == 0


async def status(port: int) -> dict:
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}/status") as response,
        ):
            (facts,) = (await response.json())["bindings"].values()
            return facts
    except aiohttp.ClientError:
        return {}


async def test_a_source_that_ends_before_the_last_publish(tmp_path, own_kafka_bootstrap, redis_url):
    """T7: no further sample and no verdict will come. Told to end in the middle of a step that hangs, and while it waits for a verdict, the
    trainer ends with 0 within its deadline; nothing is lost, and the last candidate is made by the next one."""
    scenario = f"t-{uuid.uuid4().hex[:8]}"
    (tmp_path / "serve.yaml").write_text(CONFIG.format(scenario=scenario))
    await ensure_topics(own_kafka_bootstrap)
    head = release(5).model_copy(update={"scenario": scenario})
    published = ReleasePublished(event_id="r5", at=AT, scenario=scenario, release=head)
    last = [
        sample(20, scenario=scenario),
        sample(21, scenario=scenario, score=-3),
        sample(22, scenario=scenario),
    ]
    port = free_port()
    process = await start(tmp_path, own_kafka_bootstrap, redis_url, port)
    try:
        await send(
            own_kafka_bootstrap,
            (published, topics.RELEASES),
            *((one, topics.SAMPLES) for one in last),
        )
        async with asyncio.timeout(90):
            while not (
                (await status(port)).get("state") == "training" and (tmp_path / "smp-21").exists()
            ):
                await asyncio.sleep(0.1)
        async with asyncio.timeout(20):
            assert await stop(process, signal.SIGTERM) == 0
        process = await start(tmp_path, own_kafka_bootstrap, redis_url, port)
        (candidate,) = await read(
            own_kafka_bootstrap, scenario, topics.CANDIDATES, TypeAdapter(CandidateProposed), 1
        )
        assert candidate.lineage.sample_ids == ("smp-20", "smp-21")
        async with asyncio.timeout(60):
            while (await status(port)).get("state") != "waiting for the verdict on its candidate":
                await asyncio.sleep(0.1)
    finally:
        async with asyncio.timeout(20):
            assert await stop(process, signal.SIGTERM) == 0


async def ready(port: int) -> dict:
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}/readyz") as response,
        ):
            return await response.json()
    except aiohttp.ClientError:
        return {}


async def test_a_second_trainer_stands_by_until_the_first_is_gone(
    tmp_path, own_kafka_bootstrap, redis_url
):
    """Each has a directory of its own; the second joins no consumer group before it has the lease."""
    await ensure_topics(own_kafka_bootstrap)
    processes, ports = [], (free_port(), free_port())
    for name, port in zip("ab", ports, strict=True):
        home = tmp_path / name
        home.mkdir()
        (home / "serve.yaml").write_text(CONFIG.format(scenario=f"t-{uuid.uuid4().hex[:8]}"))
        processes.append(await start(home, own_kafka_bootstrap, redis_url, port))
        async with asyncio.timeout(90):
            while True:
                seen = await ready(port)
                if seen.get("ready") if name == "a" else "stands by" in str(seen):
                    break
                await asyncio.sleep(0.1)
    try:
        assert (await ready(ports[0]))["ready"]
        assert not (await ready(ports[1]))["ready"]
        await stop(processes[0], signal.SIGKILL)
        async with asyncio.timeout(60):
            while not (await ready(ports[1])).get("ready"):
                await asyncio.sleep(0.1)
    finally:
        assert await stop(processes[1], signal.SIGTERM) == 0
