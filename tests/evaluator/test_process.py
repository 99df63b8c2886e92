"""The evaluator as production builds it, on the real broker and a real Valkey."""

import asyncio
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from reefcommon import topics
from reefcommon.events import CandidateEvaluated, Evaluation, Event, utc_now
from reefcommon.settings import SystemSettings
from reefcommon.topics import Topic
from reefkit.kafka_topics import ensure_topics
from reefkit.outside import Outside
from services.evaluator.app import application
from services.evaluator.kafka_candidates import KafkaCandidates
from services.evaluator.settings import Settings
from tests.evaluator.conftest import TASKS, candidate

pytestmark = [pytest.mark.broker, pytest.mark.redis]


async def send(bootstrap: str, topic: Topic, event: Event) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        await producer.send_and_wait(topic.name, event.model_dump_json().encode())


async def test_candidates_before_and_after_the_start_are_waiting(
    own_kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """Redis has lost the first candidate; the second was judged; the third comes by the bus."""
    lost, judged, new = (candidate(seed, base="r7-000000") for seed in "abc")
    await ensure_topics(own_kafka_bootstrap)
    verdict = CandidateEvaluated(
        event_id="evl-1",
        at=utc_now(),
        scenario="default",
        candidate=judged,
        evaluation=Evaluation(
            verdict="reject", policy="always", reason="it lost", head_release_id="r7-000000"
        ),
    )
    for event in (lost, judged):
        await send(own_kafka_bootstrap, topics.CANDIDATES, event)
    await send(own_kafka_bootstrap, topics.EVALUATIONS, verdict)
    (tmp_path / "serve.yaml").write_text(TASKS + "}")
    system = SystemSettings(
        kafka_bootstrap=own_kafka_bootstrap,
        redis_url=redis_url.rsplit("/", 1)[0] + "/44",
        state_dir=tmp_path,
        config=tmp_path / "serve.yaml",
    )
    outside, _broker = Outside.connect(system, "evaluator")
    logs = (outside.log_of(topics.CANDIDATES), outside.log_of(topics.EVALUATIONS))
    assert await KafkaCandidates(*logs).read() == ([lost], [verdict])
    await outside.close()
    app = application(system, Settings(look_again_every_s=0.2))
    async with (
        app.router.lifespan_context(app),
        asyncio.timeout(60),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://evaluator"
        ) as http,
    ):
        await send(own_kafka_bootstrap, topics.CANDIDATES, new)
        waiting: dict[str, str] = {}
        # From its arrival on a candidate is shown; its reason follows.
        while {lost.event_id, new.event_id} - waiting.keys():
            await asyncio.sleep(0.1)
            facts = (await http.get("/status")).json()
            rows = [row for row in facts["waiting_for"] if "has no head" in row["reason"]]
            waiting = {row["candidate_id"]: row["since"] for row in rows}
    assert waiting[new.event_id].startswith(new.at.isoformat()[:19])
