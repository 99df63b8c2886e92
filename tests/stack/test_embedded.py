"""The real broker, object store and release-head store: durable over `kill -9`, one owner a directory, nobody left over."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import redis.asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from reefcommon import topics
from reefcommon.config import parse
from reefstack import logs
from reefstack.embedded import Options, embedded_stack
from reefstack.errors import CannotStart
from reefstack.ports import choose
from reefstack.process import remains, sweep
from reefstack.restart_policy import RestartPolicy, StackEvent
from reefstack.state import (
    StackState,
    locked,
    new_state,
    read_state,
    running,
    secrets_of,
    write_state,
)

CONFIG = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
INFRASTRUCTURE = Options(only=frozenset({"kafka", "redis"}), default_ports=False)
ROOT = Path(__file__).parents[2]
OWNER = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from reefstack.embedded import Options, embedded_stack
from reefcommon.config import parse

async def main():
    config = parse("reef:\\n  recipe: recipes.sao.recipe:SAORecipe\\nmodel: tiny\\n")
    async with embedded_stack(config, Path(sys.argv[1]), Options(only=frozenset({"kafka", "redis"}), default_ports=False)):
        sys.stdout.write("up\\n")
        sys.stdout.flush()
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def produce(bootstrap: str, values: list[bytes]) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=False
    ) as producer:
        for value in values:
            await producer.send_and_wait(topics.COMMANDS.name, value, key=b"default")


async def consume(bootstrap: str, group: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        topics.COMMANDS.name,
        bootstrap_servers=bootstrap,
        group_id=group,
        session_timeout_ms=2000,
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    seen: list[bytes] = []
    async with consumer, asyncio.timeout(30):
        while len(seen) < count:
            seen += [
                row.value
                for rows in (await consumer.getmany(timeout_ms=500)).values()
                for row in rows
            ]
        await consumer.commit()
    return seen


def kill_everything(state_dir: Path) -> None:
    state = read_state(state_dir)
    assert state is not None
    for process in state.processes.values():
        os.killpg(process.pid, signal.SIGKILL)


async def back(events: list[StackEvent], name: str) -> None:
    async with asyncio.timeout(60):
        while sum(e.name == name and e.kind == "ready" for e in events) < 2:
            await asyncio.sleep(0.05)


@pytest.mark.broker
@pytest.mark.parametrize("given", ["", "corp.example", "*"])
async def test_a_proxy_of_the_user_is_not_asked_for_loopback(tmp_path, monkeypatch, given):
    """Neither by this process nor by its programs; other hosts go through it as before."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", given)
    options = replace(INFRASTRUCTURE, only=frozenset({"kafka"}))
    async with asyncio.timeout(60), embedded_stack(CONFIG, tmp_path / "s", options) as stack:
        await produce(stack.kafka_bootstrap, [b"1"])
    for name in ("NO_PROXY", "no_proxy"):
        assert os.environ[name].split(",") == [*given.split(), "127.0.0.1", "localhost"]


@pytest.mark.broker
@pytest.mark.redis
async def test_nothing_acknowledged_is_lost_by_kill_9_of_everything_nor_by_a_restart(
    tmp_path: Path,
) -> None:
    first, second, third = [b"a1", b"a2"], [b"b1"], [b"c1"]
    events: list[StackEvent] = []
    async with embedded_stack(CONFIG, tmp_path, INFRASTRUCTURE, listener=events.append) as stack:
        await produce(stack.kafka_bootstrap, first)
        assert await consume(stack.kafka_bootstrap, "g", 2) == first
        async with redis.asyncio.Redis.from_url(stack.redis_url) as client:
            await client.set("head", "rel-1")
        kill_everything(tmp_path)
        await back(events, "tansu")
        await produce(stack.kafka_bootstrap, second)
        ports = dict(read_state(tmp_path).ports)  # type: ignore[union-attr]
    assert running(tmp_path) is None
    async with embedded_stack(CONFIG, tmp_path, INFRASTRUCTURE) as stack:
        state = running(tmp_path)
        assert state is not None
        assert state.phase == "ready"
        assert state.ports == ports, "a restart keeps its ports where they are free"
        assert await consume(stack.kafka_bootstrap, "g", 1) == second, (
            "the group goes on after what it has committed"
        )
        await produce(stack.kafka_bootstrap, third)
        assert await consume(stack.kafka_bootstrap, "from-the-start", 4) == [
            *first,
            *second,
            *third,
        ]
        async with redis.asyncio.Redis.from_url(stack.redis_url) as client:
            assert await client.get("head") == b"rel-1"


@pytest.mark.broker
async def test_a_directory_with_seaweedfs_goes_on_with_it(tmp_path: Path) -> None:
    """A state directory of an earlier version starts, has its log, and says which store it keeps."""
    only, events = frozenset({"kafka"}), list[StackEvent]()
    options = Options(only=only, default_ports=False)
    async with embedded_stack(CONFIG, tmp_path, replace(options, store="seaweedfs")) as stack:
        await produce(stack.kafka_bootstrap, [b"old"])
        assert await consume(stack.kafka_bootstrap, "g", 1) == [b"old"]
    async with embedded_stack(CONFIG, tmp_path, options, listener=events.append) as stack:
        await produce(stack.kafka_bootstrap, [b"new"])
        assert await consume(stack.kafka_bootstrap, "g", 1) == [b"new"]
        assert await consume(stack.kafka_bootstrap, "h", 2) == [b"old", b"new"]
    assert [e for e in events if e.kind == "note" and "keeps its log in SeaweedFS" in e.text]
    with pytest.raises(CannotStart, match="is kept by seaweedfs, not by objectstore"):
        async with embedded_stack(CONFIG, tmp_path, replace(options, store="objectstore")):
            pass


@pytest.mark.broker
@pytest.mark.redis
async def test_kill_9_of_the_supervisor_leaves_nobody_and_the_next_start_works(
    tmp_path: Path,
) -> None:
    """P7: the programs are told by the kernel."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == b"up\n"
        state = running(tmp_path)
        assert state is not None
        assert set(state.processes) == {"objectstore", "tansu", "valkey"}
        with (
            pytest.raises(CannotStart, match=rf"in use by `reef serve`, pid {owner.pid}"),
            locked(tmp_path),
        ):
            pass
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    deadline = time.monotonic() + 30
    left = set(state.processes)
    while left and time.monotonic() < deadline:
        left = {
            name
            for name in left
            if psutil.pid_exists(state.processes[name].pid)
            and not _zombie(state.processes[name].pid)
        }
        await asyncio.sleep(0.1)
    assert not left
    assert running(tmp_path) is None, "the ready mark of a dead run is not believed"
    async with embedded_stack(CONFIG, tmp_path, INFRASTRUCTURE):
        assert len(remains(secrets_of(tmp_path).stack_id)) == 3
    assert remains(secrets_of(tmp_path).stack_id) == []


STUBBORN_OWNER = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from reefstack.spec import HttpReady, ProcessSpec
from reefstack.supervisor import Supervisor

async def main():
    fake, note, port, logs = sys.argv[1:]
    argv = (sys.executable, "-I", "-S", fake, f"port={port}", "stubborn=1", f"child={note}")
    await Supervisor("stack-of-this-test-" + port).start([ProcessSpec("trainer", argv, HttpReady(f"http://127.0.0.1:{port}/"), Path(logs))])
    sys.stdout.write("up\\n")
    sys.stdout.flush()
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_what_ignores_the_kernels_signal_is_swept_by_its_mark_and_nobody_else(
    tmp_path: Path,
) -> None:
    """P7: a trainer with a step process, both deaf to SIGTERM, after `kill -9` of the supervisor."""
    fake, note = Path(__file__).with_name("fake_program.py"), tmp_path / "note"
    port = choose(["gateway"], asked={}, last={}, prefer_defaults=False)["gateway"]
    words = [
        sys.executable,
        "-c",
        STUBBORN_OWNER,
        str(fake),
        str(note),
        str(port),
        str(tmp_path / "log"),
    ]
    bystander = subprocess.Popen(
        [sys.executable, "-I", "-S", str(fake), "note=" + str(tmp_path / "other")]
    )
    owner = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT)
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == b"up\n"
        owner.kill()
        owner.wait()
        left = {process.pid for process in remains(f"stack-of-this-test-{port}")}
        assert int(note.read_text()) in left
        assert len(left) == 2
        swept = sweep(f"stack-of-this-test-{port}", grace_s=0.3)
        assert {name.partition(" ")[0] for name in swept} == {"trainer"}
        assert remains(f"stack-of-this-test-{port}") == []
        assert bystander.poll() is None
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        bystander.kill()
        bystander.wait()


def _zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.redis
async def test_a_program_comes_back_although_nothing_of_it_can_be_written_down_or_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes stack.json and a redirected output alike; where the output was a pipe, its reader may have left."""
    events: list[StackEvent] = []
    full = False

    def hear(event: StackEvent) -> None:
        events.append(event)
        if full:
            raise (SystemExit if event.kind == "ready" else OSError)(1)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    options = Options(only=frozenset({"redis"}), default_ports=False)
    async with embedded_stack(CONFIG, tmp_path, options, listener=hear) as stack:
        full = True
        monkeypatch.setattr("reefstack.state.write_state", refuse)
        os.kill(stack.supervisor.children["valkey"].record.pid, signal.SIGKILL)
        await back(events, "valkey")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stack.failed(), 0.2)


def test_a_ready_mark_is_believed_only_while_that_very_process_lives(tmp_path: Path) -> None:
    """P7: neither a dead supervisor's mark, nor one whose pid belongs to another process by now."""
    me = psutil.Process()
    mine = StackState(pid=me.pid, created=me.create_time(), started_at=0.0, phase="ready")
    write_state(tmp_path, mine)
    assert running(tmp_path) == mine
    write_state(tmp_path, mine.model_copy(update={"created": me.create_time() - 1000}))
    assert running(tmp_path) is None
    write_state(tmp_path, mine.model_copy(update={"phase": "ended"}))
    assert running(tmp_path) is None
    (tmp_path / "stack.json").write_text("{not json")
    assert running(tmp_path) is None


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    made = secrets_of(tmp_path)
    assert secrets_of(tmp_path) == made
    assert (tmp_path / "secrets.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "secrets.json").write_text("{}")
    with pytest.raises(CannotStart, match=r"secrets\.json cannot be read") as caught:
        secrets_of(tmp_path)
    assert made.s3_secret_key not in str(caught.value)


def test_a_state_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CannotStart, match=r"cannot use the state directory .*--state-dir"),
        locked(tmp_path / "file"),
    ):
        pass


def test_a_log_that_has_grown_is_put_aside_and_writing_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "tansu.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 2000)
        assert logs.rotate(tmp_path, max_bytes=1000) == [path]
        writer.write(b"after\n")
    assert path.read_bytes() == b"after\n"
    assert (tmp_path / "tansu.log.1").stat().st_size == 2000
    assert logs.rotate(tmp_path, max_bytes=1000) == []


async def test_a_port_taken_during_the_start_is_left(tmp_path: Path) -> None:
    """Two stacks may choose the same port at once: the later one goes to others."""
    events: list[StackEvent] = []
    strangers: list[socket.socket] = []
    chosen = choose(["redis"], asked={}, last={}, prefer_defaults=False)["redis"]

    def take_it(event: StackEvent) -> None:
        events.append(event)
        if event.kind == "starting" and not strangers:
            strangers.append(socket.create_server(("127.0.0.1", chosen)))

    with locked(tmp_path):
        write_state(tmp_path, new_state(ports={"redis": chosen}))
    options = Options(
        only=frozenset({"redis"}),
        default_ports=False,
        policy=RestartPolicy(free_port_within_s=0.2),
    )
    async with embedded_stack(CONFIG, tmp_path, options, listener=take_it) as stack:
        assert str(chosen) not in stack.redis_url
        async with redis.asyncio.from_url(stack.redis_url) as client:
            assert await client.ping()
    strangers[0].close()
    assert any(f"port {chosen} was taken" in event.text for event in events)
