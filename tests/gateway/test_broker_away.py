"""The broker goes away and comes back: no request fails, and everything lies in the log in order afterwards."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from reefcommon import topics
from reefcommon.ids import time_ordered_hex
from reefcommon.settings import SystemSettings
from reefkit.kafka_topics import ensure_topics
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefstack import tansu
from services.gateway.app import Gateway, build
from services.gateway.settings import Settings

from .conftest import CHAT, serving
from .fakes import release
from .stub_engine import StubEngine
from .test_broker import all_of
from .test_process import until_ready

pytestmark = [pytest.mark.broker, pytest.mark.redis]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Broker:
    """A Tansu of a test's own behind a door that can be shut: shut, its address refuses connections."""

    process: subprocess.Popen[bytes]
    port: int
    inner: int
    door: asyncio.Server | None = None
    _pipes: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def open(self) -> None:
        self.door = await asyncio.start_server(self._pass, "127.0.0.1", self.port)

    async def shut(self) -> None:
        assert self.door is not None
        self.door.close()
        for pipe in list(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        await self.door.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        inside = None
        try:
            other, inside = await asyncio.open_connection("127.0.0.1", self.inner)
            await asyncio.wait(
                [
                    asyncio.create_task(copy(reader, inside)),
                    asyncio.create_task(copy(other, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pipes.discard(task)
            for end in (writer, inside):
                if end is not None:
                    end.transport.abort()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """Started, its topics made."""
    port, inner = free_port(), free_port()
    place = tmp_path / "tansu"
    place.mkdir()
    addresses = [
        "--listener-url",
        f"tcp://127.0.0.1:{inner}",
        "--advertised-listener-url",
        f"tcp://127.0.0.1:{port}",
    ]
    argv = [tansu.binary(), "broker", *addresses, "--storage-engine", "memory://tansu/"]
    process = subprocess.Popen(
        argv, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    made = Broker(process, port, inner)
    try:
        await made.open()
        for _ in range(100):
            with contextlib.suppress(Exception):
                await ensure_topics(made.bootstrap)
                break
            await asyncio.sleep(0.1)
        yield made
    finally:
        with contextlib.suppress(OSError):
            await made.shut()
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@pytest.fixture
async def scenario(redis_url: str) -> str:
    """One of a test's own, served by the base model."""
    name = f"away-{time_ordered_hex()[-8:]}"
    heads = connect(redis_url)
    await RedisReleaseHeads(heads).advance(release(name, 0, None))
    await heads.aclose()
    return name


@contextlib.asynccontextmanager
async def gateway(
    bootstrap: str, redis_url: str, state_dir: Path, stub: StubEngine | None = None, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    async with serving((stub or StubEngine()).app) as engine_url:
        system = SystemSettings(
            kafka_bootstrap=bootstrap,
            redis_url=redis_url,
            engine_urls=engine_url,
            state_dir=state_dir,
            experience_url="http://127.0.0.1:9",
        )
        made = build(system, Settings(snapshot_s=60, command_timeout_s=10, **settings))
        async with serving(made.app) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
            yield http, made


@dataclass
class Users:
    """Conversations whose turns, and a report on each, come one after the other; what they were told, and what failed."""

    http: httpx.AsyncClient
    scenario: str
    receipts: dict[str, list[str]] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    stop: bool = False

    async def converse(self, name: str, turns: int = 1_000_000) -> None:
        named = {"x-reef-scenario": self.scenario, "x-reef-tag-session": f"{self.scenario}-{name}"}
        mine = self.receipts.setdefault(name, [])
        while not self.stop and len(mine) < turns:
            started = time.perf_counter()
            answer = await self.http.post(
                "/v1/chat/completions",
                json={"messages": CHAT, "stream": len(mine) % 3 == 1},
                headers=named,
            )
            self.latencies.append(time.perf_counter() - started)
            if answer.status_code != 200 or "not_durable" in answer.text:
                self.failed.append(answer.text)
                continue
            mine.append(answer.headers["x-reef-agent-record-id"])
            report = await self.http.post(
                "/reef/report", json={"score": 1, "references": [mine[-1]]}, headers=named
            )
            if report.status_code != 202:
                self.failed.append(report.text)
            else:
                self.reports.append(report.json()["agent_record_id"])


async def spool_facts(http: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await http.get("/status")).json()["log"])


async def until(http: httpx.AsyncClient, mode: str, within_s: float = 20.0) -> dict[str, Any]:
    deadline = time.monotonic() + within_s
    while (facts := await spool_facts(http))["mode"] != mode:
        assert time.monotonic() < deadline, facts
        await asyncio.sleep(0.05)
    return facts


async def check_log(bootstrap: str, scenario: str, users: Users) -> None:
    """Every receipt is there, first sightings are in the conversation's order, and a second sighting is the same bytes."""
    assert users.failed == []
    for topic, wanted in (
        (topics.INFERENCES, [r for rs in users.receipts.values() for r in rs]),
        (topics.FEEDBACK, users.reports),
    ):
        seen: dict[str, bytes] = {}
        for _, _, value in await all_of(bootstrap, topic):
            if scenario.encode() in value:
                assert seen.setdefault(orjson.loads(value)["event_id"], value) == value
        assert set(wanted) == set(seen)
        assert len(wanted) == len(seen)
        if topic is topics.INFERENCES:
            for receipts in users.receipts.values():
                mine = set(receipts)
                assert [event_id for event_id in seen if event_id in mine] == receipts


@pytest.mark.parametrize("how", ["refused", "stopped"])
async def test_away_and_back_under_load(
    broker: Broker, redis_url: str, scenario: str, tmp_path: Path, how: str
) -> None:
    """Twice away under load, by refused connections or by silence: no request fails, the log has everything in order, /readyz holds."""
    async with gateway(broker.bootstrap, redis_url, tmp_path / "state", ack_timeout_s=1.0) as (
        http,
        _,
    ):
        await until(http, "direct")
        users = Users(http, scenario)
        talking = [asyncio.create_task(users.converse(str(n))) for n in range(6)]
        for _ in range(2):
            await asyncio.sleep(0.5)
            if how == "refused":
                await broker.shut()
            else:
                broker.process.send_signal(signal.SIGSTOP)
            await until(http, "spooling")
            users.latencies.clear()
            await asyncio.sleep(1.5)
            async with asyncio.timeout(60):  # a busy machine answers fewer in that time
                while len(users.latencies) <= 20:
                    await asyncio.sleep(0.1)
            assert sorted(users.latencies)[len(users.latencies) // 2] < 0.5
            facts = await spool_facts(http)
            assert facts["records"] > 20
            assert facts["broker_away"]
            assert "log" not in (await http.get("/readyz")).json()["failures"]
            refused = await http.post(
                f"/reef/scenarios/{scenario}/rollback", json={"release_id": f"rel-{scenario}-0"}
            )
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "broker_unavailable"
            assert refused.headers["retry-after"]
            if how == "refused":
                await broker.open()
            else:
                broker.process.send_signal(signal.SIGCONT)
            await until(http, "direct")
        await asyncio.sleep(0.3)
        users.stop = True
        await asyncio.gather(*talking)
        facts = await until(http, "direct")
        assert (facts["records"], facts["bytes"]) == (0, 0)
        assert not list(Path(facts["directory"]).glob("*.seg"))
        await check_log(broker.bootstrap, scenario, users)


async def test_a_start_without_the_broker(
    broker: Broker, redis_url: str, scenario: str, tmp_path: Path
) -> None:
    """The gateway serves before it has ever seen the broker, is stopped, starts again, and relays what it finds when the broker is there."""
    await broker.shut()
    users = []
    for _ in range(2):
        async with gateway(broker.bootstrap, redis_url, tmp_path / "state") as (http, _):
            users.append(Users(http, scenario))
            await asyncio.gather(*(users[-1].converse(f"{n}", 3) for n in range(4)))
            assert users[-1].failed == []
            assert (await http.get("/readyz")).status_code == 200
    await broker.open()
    async with gateway(broker.bootstrap, redis_url, tmp_path / "state") as (http, _):
        await until(http, "direct")
        text = (await http.get("/metrics")).text
        assert "reef_gateway_spool_records 0.0" in text
    both = Users(http, scenario, reports=[r for u in users for r in u.reports])
    both.receipts = {
        name: [r for u in users for r in u.receipts[name]] for name in users[0].receipts
    }
    assert sum(len(rs) for rs in both.receipts.values()) == 24
    await check_log(broker.bootstrap, scenario, both)


async def test_past_the_budget(
    broker: Broker, redis_url: str, scenario: str, tmp_path: Path
) -> None:
    """503 with Retry-After before the engine is asked, for reports too; /readyz says why; with the broker back it serves on, nothing lost."""
    await broker.shut()
    stub = StubEngine()
    async with gateway(
        broker.bootstrap, redis_url, tmp_path / "state", stub, spool_budget_bytes=256 * 1024
    ) as (http, _):
        users = Users(http, scenario)
        await asyncio.gather(*(users.converse(str(n), 60) for n in range(1)))
        named = {"x-reef-scenario": scenario}
        while (
            answer := await http.post(
                "/v1/chat/completions", json={"messages": CHAT}, headers=named
            )
        ).status_code == 200:
            users.receipts[answer.headers["x-reef-agent-record-id"]] = [
                answer.headers["x-reef-agent-record-id"]
            ]
        asked = len(stub.requests)
        report = {"score": 1, "references": [users.receipts["0"][0]]}
        refused = [
            await http.post("/v1/chat/completions", json={"messages": CHAT}, headers=named),
            await http.post(
                "/v1/chat/completions", json={"messages": CHAT, "stream": True}, headers=named
            ),
            await http.post("/reef/report", json=report, headers=named),
        ]
        for found in (answer, *refused):
            assert found.status_code == 503
            assert found.headers["retry-after"]
            assert found.json()["error"]["code"] == "spool_full"
        assert len(stub.requests) == asked
        unrecorded = await http.post(
            "/v1/chat/completions",
            json={"messages": CHAT},
            headers={**named, "x-reef-capture": "false"},
        )
        assert unrecorded.status_code == 200
        assert "spool" in (await http.get("/readyz")).json()["failures"]["log"]
        await broker.open()
        await until(http, "direct")
        assert (await http.post("/reef/report", json=report, headers=named)).status_code == 202
    users.reports = users.reports[:]
    seen = {
        orjson.loads(v)["event_id"]
        for _, _, v in await all_of(broker.bootstrap, topics.INFERENCES)
        if scenario.encode() in v
    }
    assert seen == {r for rs in users.receipts.values() for r in rs}


@pytest.mark.parametrize("end", ["term", "kill"])
async def test_500_answered_with_the_broker_away(
    broker: Broker, redis_url: str, scenario: str, tmp_path: Path, end: str
) -> None:
    """G1: 500 exchanges while the broker is silent, SIGTERM (or SIGKILL) right after the last reply: the next start brings all 500 to the log."""
    async with serving(StubEngine().app) as engine_url:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "REEF_KAFKA_BOOTSTRAP": broker.bootstrap,
            "REEF_REDIS_URL": redis_url,
            "REEF_ENGINE_URLS": engine_url,
            "REEF_STATE_DIR": str(tmp_path / "state"),
            "REEF_GATEWAY_DRAIN_S": "5",
        }

        @contextlib.asynccontextmanager
        async def process() -> AsyncIterator[tuple[httpx.AsyncClient, asyncio.subprocess.Process]]:
            port = free_port()
            named = {**env, "REEF_GATEWAY_PORT": str(port)}
            errors = (tmp_path / "stderr").open("ab")
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.gateway", env=named, stderr=errors
            )
            try:
                async with httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}", timeout=30
                ) as http:
                    await until_ready(http)
                    yield http, child
            finally:
                errors.close()
                if child.returncode is None:
                    child.kill()
                    await child.wait()

        async with process() as (http, child):
            await until(http, "direct")
            users = Users(http, scenario)
            await asyncio.gather(*(users.converse(str(n), 5) for n in range(10)))
            broker.process.send_signal(signal.SIGSTOP)
            await asyncio.gather(*(users.converse(str(n), 50) for n in range(10)))
            assert users.failed == []
            child.send_signal(signal.SIGTERM if end == "term" else signal.SIGKILL)
            started = time.monotonic()
            code = await asyncio.wait_for(child.wait(), 25)
            if end == "term":
                assert code == 0
                assert time.monotonic() - started < 20
                said = [
                    line
                    for line in (tmp_path / "stderr").read_text().splitlines()
                    if "gateway_stopped" in line
                ]
                assert "spooled" in said[-1]
        broker.process.send_signal(signal.SIGCONT)
        async with process() as (http, _):
            await until(http, "direct")
        assert sum(len(rs) for rs in users.receipts.values()) == 500
        await check_log(broker.bootstrap, scenario, users)
