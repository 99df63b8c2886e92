"""A client's own receipt on the real broker, Redis and store: Redis flushed, everything restarted, and the answer is the same."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from reefcommon.config import parse
from reefcommon.settings import SystemSettings
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefstack.embedded import Options, embedded_stack
from services.experience import app as experience
from services.experience.settings import Settings as ExperienceSettings
from services.gateway import app as gateway
from services.gateway.settings import Settings
from tests.replay.reading import everything

from .conftest import CHAT, serving
from .fakes import release
from .stub_engine import StubEngine

pytestmark = [pytest.mark.broker, pytest.mark.redis, pytest.mark.store]
CONFIG = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
KEY = {"x-reef-agent-record-id": "order-17"}


@contextlib.asynccontextmanager
async def services(system: SystemSettings) -> AsyncIterator[httpx.AsyncClient]:
    """The experience service and a gateway in front of it, both new."""
    async with serving(experience.build(system, ExperienceSettings())) as url:
        made = gateway.build(
            system.model_copy(update={"experience_url": url}), Settings(key_lease_s=0.6)
        )
        async with (
            serving(made.app) as front,
            httpx.AsyncClient(base_url=front, timeout=30) as http,
        ):
            yield http


async def asked(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    """One keyed exchange, again while it is told to come again in a moment."""
    async with asyncio.timeout(60):
        while (
            answer := await http.post(
                "/v1/chat/completions", json={"messages": CHAT, **fields}, headers=KEY
            )
        ).status_code == 503:
            assert answer.json()["error"]["code"] == "keys_unavailable"
            await asyncio.sleep(0.2)
        return answer


async def test_a_key_outlives_redis_and_restarts(tmp_path: Path) -> None:
    """G7 and E5: Redis is flushed and both services are started anew, twice: one record, one upstream call, one content, 409 for another body."""
    options = Options(only=frozenset({"kafka", "redis"}), memory_broker=True, default_ports=False)
    stub = StubEngine()
    async with embedded_stack(CONFIG, tmp_path, options) as stack, serving(stub.app) as engine:
        heads = connect(stack.redis_url)

        async def flushed() -> None:
            await heads.flushall()
            await RedisReleaseHeads(heads).advance(release("default", 0, None))

        system = SystemSettings(
            kafka_bootstrap=stack.kafka_bootstrap,
            redis_url=stack.redis_url,
            engine_urls=engine,
            state_dir=tmp_path,
        )
        await flushed()
        async with services(system) as http:
            first = await asked(http)
            assert first.status_code == 200
        away = system.model_copy(update={"experience_url": "http://127.0.0.1:9"})
        await flushed()
        async with services(system) as http:
            again = await asked(http)
            assert (again.status_code, again.json()) == (200, first.json())
            assert again.headers["x-reef-agent-record-id"] == "order-17"
            await flushed()
            assert (await asked(http, temperature=0.5)).status_code == 409
            assert (await asked(http)).json() == first.json()
        await flushed()
        async with (
            serving(gateway.build(away, Settings()).app) as front,
            httpx.AsyncClient(base_url=front, timeout=30) as http,
        ):
            refused = await http.post("/v1/chat/completions", json={"messages": CHAT}, headers=KEY)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        await heads.aclose()
        records = [
            record
            for record in await everything(stack.kafka_bootstrap, "reef.inferences.v1")
            if b'"order-17"' in record.value
        ]
        assert (len(records), len(stub.requests)) == (1, 1)
