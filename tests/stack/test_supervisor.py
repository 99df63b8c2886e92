"""The supervisor, with tiny programs: order, readiness, restarts, limits, and that nobody survives."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from reefstack import probes
from reefstack.errors import CannotStart, PortTaken, StackFailed
from reefstack.ports import choose
from reefstack.restart_policy import RestartPolicy, StackEvent
from reefstack.spec import HttpReady, ProcessSpec
from reefstack.supervisor import Supervisor

FAKE = Path(__file__).with_name("fake_program.py")
QUICK = RestartPolicy(
    first_delay_s=0.02, max_delay_s=0.05, quick_deaths=3, probe_every_s=0.03, free_port_within_s=0.3
)


def free_port() -> int:
    return choose(["gateway"], asked={}, last={}, prefer_defaults=False)["gateway"]


def fake(
    tmp_path: Path,
    name: str,
    *,
    needs: tuple[str, ...] = (),
    ready_within_s: float = 10.0,
    grace_s: float = 3.0,
    **words: object,
) -> ProcessSpec:
    port = words.setdefault("port", free_port())
    argv = (
        sys.executable,
        "-I",
        "-S",
        str(FAKE),
        *(f"{key.rstrip('_')}={value}" for key, value in words.items()),
    )
    return ProcessSpec(
        name=name,
        argv=argv,
        probe=HttpReady(f"http://127.0.0.1:{port}/"),
        log=tmp_path / "logs" / f"{name}.log",
        depends_on=needs,
        ports=(port,),
        ready_within_s=ready_within_s,
        stop_within_s=grace_s,
    )


@pytest.fixture
async def supervise() -> AsyncIterator[Callable[..., Supervisor]]:
    """Makes supervisors, and ends what they have left when a test fails."""
    made: list[Supervisor] = []

    def make(
        listener: Callable[[StackEvent], None] = lambda _event: None,
        policy: RestartPolicy = QUICK,
        **more: Any,
    ) -> Supervisor:
        made.append(Supervisor("test", listener=listener, policy=policy, **more))
        return made[-1]

    yield make
    for supervisor in made:
        await supervisor.kill()


async def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_each_starts_when_what_it_needs_is_ready_and_they_end_in_reverse(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    """P7: ended in reverse order."""
    ended, events = tmp_path / "ended", []
    specs = [
        fake(tmp_path, "store", after=0.3, stopped=ended, as_="store"),
        fake(tmp_path, "broker", needs=("store",), stopped=ended, as_="broker"),
        fake(tmp_path, "service", needs=("topics",), stopped=ended, as_="service"),
    ]
    supervisor = supervise(events.append)
    created = []

    async def create() -> None:
        created.append([e.name for e in events if e.kind == "ready"])

    specs[2] = replace(specs[2], niceness=5)
    await supervisor.start(specs, {"topics": ("broker", create)})
    store, service = (
        psutil.Process(supervisor.children[name].process.pid) for name in ("store", "service")
    )
    assert service.nice() == min(19, store.nice() + 5)
    # in one session, without which the values count for little, and in groups of their own
    assert {os.getsid(one.pid) for one in (store, service)} == {os.getsid(0)}
    assert [os.getpgid(one.pid) for one in (store, service)] == [store.pid, service.pid]
    assert [e.name for e in events if e.kind == "ready"] == ["store", "broker", "topics", "service"]
    assert created == [["store", "broker"]]
    await supervisor.stop()
    assert ended.read_text().split() == ["service", "broker", "store"]


async def test_whole_process_groups_end_and_the_stubborn_are_killed_after_their_grace(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    """P7: children with grandchildren, one of which ignores SIGTERM."""
    note = tmp_path / "grandchild"
    supervisor = supervise()
    await supervisor.start([fake(tmp_path, "trainer", child=note, grace_s=0.5)])
    grandchild, child = int(note.read_text()), supervisor.children["trainer"].record.pid
    assert psutil.pid_exists(grandchild)
    began = time.monotonic()
    await supervisor.stop()
    assert 0.4 < time.monotonic() - began < 3.0
    assert await gone(grandchild)
    assert await gone(child)


async def test_a_program_that_dies_is_started_again_without_what_it_left(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    note, events = tmp_path / "grandchild", []
    supervisor = supervise(events.append)
    await supervisor.start([fake(tmp_path, "trainer", child=note, grace_s=0.3)])
    grandchild, first = int(note.read_text()), supervisor.children["trainer"].record
    os.kill(first.pid, 9)
    async with asyncio.timeout(10):
        while sum(e.kind == "ready" for e in events) < 2:
            await asyncio.sleep(0.02)
    assert await gone(grandchild)
    assert supervisor.children["trainer"].record.pid != first.pid
    assert [e.kind for e in events if e.kind in ("ready", "died", "restarting")] == [
        "ready",
        "died",
        "restarting",
        "ready",
    ]
    await supervisor.stop()


async def test_nothing_is_started_on_a_full_disk(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    """A store that ends because it cannot write would end again at its next write, until the stack gives up."""
    events: list[StackEvent] = []
    room = [""]
    supervisor = supervise(events.append, room=lambda: room[0])
    await supervisor.start([fake(tmp_path, "valkey", grace_s=0.3)])
    room[0] = "waits for room: 0 MB are free"
    os.kill(supervisor.children["valkey"].record.pid, 9)
    async with asyncio.timeout(10):
        while not any(e.kind == "note" and "room" in e.text for e in events):
            await asyncio.sleep(0.02)
    assert supervisor.children == {}
    room[0] = ""
    async with asyncio.timeout(10):
        while sum(e.kind == "ready" for e in events) < 2:
            await asyncio.sleep(0.02)
    assert sum(e.kind == "note" for e in events) == 1
    await supervisor.stop()


async def test_a_crash_loop_stops_the_stack_and_shows_the_last_log_lines(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    events: list[StackEvent] = []
    supervisor = supervise(events.append)
    with pytest.raises(
        StackFailed, match=r"engine ended 3 times in a row \(exit code 4\)[\s\S]*fake program ends"
    ):
        await supervisor.start([fake(tmp_path, "engine", die=4, live=0, after=0)])
    assert sum(e.kind == "died" for e in events) == 3
    await supervisor.stop()
    assert supervisor.children == {}


async def test_a_program_that_dies_for_good_later_is_reported_to_whoever_waits(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    supervisor = supervise()
    await supervisor.start([fake(tmp_path, "engine", die=1, live=0.3)])
    async with asyncio.timeout(20):
        failure = await supervisor.failed()
    assert "engine ended 3 times" in str(failure)
    await supervisor.stop()


async def test_what_only_learns_may_die_as_often_as_it_likes_without_ending_what_serves(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    """Damage that a program meets each time it starts must not stop those that answer."""
    events: list[StackEvent] = []
    supervisor = supervise(events.append)
    learns = replace(fake(tmp_path, "trainer", die=1, live=0.3), vital=False)
    await supervisor.start([fake(tmp_path, "engine"), learns])
    async with asyncio.timeout(20):
        while sum(e.kind == "died" for e in events) < QUICK.quick_deaths + 2:
            await asyncio.sleep(0.02)
    notes = [e.text for e in events if e.kind == "note"]
    assert notes[0].startswith(
        f"ended {QUICK.quick_deaths} times in a row (exit code 1): the others go on"
    )
    assert "engine" in supervisor.children
    await supervisor.stop()


async def test_what_was_never_ready_ends_the_start_also_where_it_only_learns(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    supervisor = supervise()
    with pytest.raises(StackFailed, match="trainer ended 3 times in a row"):
        await supervisor.start(
            [replace(fake(tmp_path, "trainer", die=1, live=0, after=0), vital=False)]
        )
    await supervisor.stop()


async def test_a_start_that_failed_leaves_no_task(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    before = asyncio.all_tasks()
    supervisor = supervise()
    waits = fake(tmp_path, "publisher", needs=("trainer",))
    with pytest.raises(StackFailed):
        await supervisor.start([fake(tmp_path, "trainer", die=1, live=0, after=0), waits])
    await supervisor.stop()
    assert asyncio.all_tasks() == before


async def test_a_wrong_configuration_is_not_tried_again(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    events: list[StackEvent] = []
    supervisor = supervise(events.append)
    with pytest.raises(StackFailed, match=r"engine ended \(exit code 78\)"):
        await supervisor.start([fake(tmp_path, "engine", die=78, live=0)])
    assert sum(e.kind == "died" for e in events) == 1
    await supervisor.stop()


async def test_never_ready_is_an_error_with_a_deadline(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    spec = fake(tmp_path, "engine", after=60, ready_within_s=0.4)
    supervisor = supervise()
    with pytest.raises(
        CannotStart,
        match=r"engine was not ready within 0 s: not listening yet\n.*fake program starts",
    ):
        await supervisor.start([spec])
    await supervisor.stop()


async def test_another_program_that_answers_on_the_port_does_not_make_ours_ready(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    """P7: a ready answer that comes from an earlier run is not believed; the message says who holds the port."""
    supervisor, other = supervise(), supervise()
    spec = fake(tmp_path, "gateway")
    await other.start([spec])
    with pytest.raises(
        CannotStart, match=rf"port {spec.ports[0]}, wanted for gateway, is taken by .*\(pid \d+\)"
    ):
        await supervisor.start([spec])
    await supervisor.stop()
    await other.stop()


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
async def test_a_stranger_on_the_port_does_not_stand_for_our_child(
    tmp_path: Path, supervise: Callable[..., Supervisor], status: str
) -> None:
    """It takes the port while ours is still getting ready; ours cannot bind, and dies."""
    events: list[StackEvent] = []
    asked = 0
    spec = fake(tmp_path, "engine", after=1.0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
        writer.close()

    supervisor = supervise(events.append)
    start = asyncio.ensure_future(supervisor.start([spec]))
    await seen(events, "engine", "waiting", 1)
    async with await asyncio.start_server(answer, "127.0.0.1", spec.ports[0]):
        with pytest.raises(PortTaken) as error:
            await start
    assert error.value.port == spec.ports[0]
    assert asked
    assert "died" in [event.kind for event in events]
    assert "ready" not in [event.kind for event in events]
    if status.startswith("200"):
        assert any("held by another program" in event.text for event in events)


@pytest.mark.parametrize(
    ("body", "first_line"),
    [
        (
            b'{"ready": false, "failures": {"engine": "no answer from http://a"}}',
            "waits for the engine",
        ),
        (b'{"failures": {"kafka": "x", "redis": "y"}}', "waits for the kafka, the redis"),
        (b"busy", "503 busy"),
    ],
)
def test_a_display_gets_a_short_reason_for_the_wait(body: bytes, first_line: str) -> None:
    reason = probes._http_refusal(b"HTTP/1.1 503 Unready\r\n\r\n" + body)
    assert reason.splitlines()[0] == first_line
    assert body.decode() in reason, "an error that ends the start has all of it"


async def seen(events: list[StackEvent], name: str, kind: str, times: int) -> None:
    async with asyncio.timeout(30):
        while sum((e.name, e.kind) == (name, kind) for e in events) < times:
            await asyncio.sleep(0.02)


async def test_a_program_that_hangs_without_ending_is_killed_and_started_again(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    """Stopped by a signal it still takes connections (the kernel does), but says nothing."""
    events: list[StackEvent] = []
    supervisor = supervise(events.append, replace(QUICK, hung_after_s=0.5, alive_every_s=0.05))
    await supervisor.start([fake(tmp_path, "engine")])
    first = supervisor.children["engine"].record.pid
    os.kill(first, signal.SIGSTOP)
    await seen(events, "engine", "ready", 2)
    assert [e.text for e in events if e.kind == "died"] == ["no sign of life for 0.5 s"]
    assert await gone(first)
    await supervisor.stop()


async def test_a_service_starts_again_at_once_while_what_it_needs_is_away_and_a_broker_waits_for_its_store(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    events: list[StackEvent] = []
    holds = tmp_path / "hold"
    holds.mkdir()
    supervisor = supervise(events.append, holds=holds)
    broker = replace(fake(tmp_path, "broker", needs=("store",)), restarts_after=("store",))
    await supervisor.start(
        [fake(tmp_path, "store"), broker, fake(tmp_path, "gateway", needs=("broker",))]
    )
    (holds / "store").touch()
    os.kill(supervisor.children["store"].record.pid, signal.SIGKILL)
    await seen(events, "store", "died", 1)
    for name in ("broker", "gateway"):
        os.kill(supervisor.children[name].record.pid, signal.SIGKILL)
    await seen(events, "gateway", "ready", 2)
    assert {"store", "broker"}.isdisjoint(supervisor.children)
    (holds / "store").unlink()
    await seen(events, "broker", "ready", 2)
    again = [e.name for e in events if e.kind == "ready"][3:]
    assert again == ["gateway", "store", "broker"]
    await supervisor.stop()


async def test_deaths_after_a_settled_time_are_no_crash_loop(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    events: list[StackEvent] = []
    supervisor = supervise(events.append, replace(QUICK, settled_s=0.0))
    await supervisor.start([fake(tmp_path, "engine", die=1, live=0.2)])
    await seen(events, "engine", "ready", 5)
    assert all(e.kind != "stopped" for e in events)
    await supervisor.stop()


async def test_a_restarted_program_may_be_long_in_getting_ready(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    """What it needs may be away for longer than a first start may take; only silence counts."""
    events: list[StackEvent] = []
    supervisor = supervise(events.append)
    port = free_port()
    answers = fake(tmp_path, "experience", port=port, ready_within_s=3.0, slow=tmp_path / "slow")
    await supervisor.start([answers])
    (tmp_path / "slow").touch()
    os.kill(supervisor.children["experience"].record.pid, signal.SIGKILL)
    await seen(events, "experience", "restarting", 1)
    await asyncio.sleep(3.5)
    assert sum(e.kind == "died" for e in events) == 1
    (tmp_path / "slow").unlink()
    await seen(events, "experience", "ready", 2)
    await supervisor.stop()


async def test_a_missing_program_is_named(
    tmp_path: Path, supervise: Callable[..., Supervisor]
) -> None:
    spec = ProcessSpec(
        "weed",
        (str(tmp_path / "nothing"),),
        HttpReady("http://127.0.0.1:1/"),
        tmp_path / "weed.log",
    )
    supervisor = supervise()
    with pytest.raises(CannotStart, match=r"weed: cannot run .*nothing.*No such file"):
        await supervisor.start([spec])
    await supervisor.stop()


def test_the_first_restart_is_at_once_and_the_pause_before_further_ones_grows_up_to_a_limit() -> (
    None
):
    policy = RestartPolicy(first_delay_s=0.5, max_delay_s=10.0)
    assert [policy.delay_s(n) for n in (1, 2, 3, 9)] == [0.0, 0.5, 1.0, 10.0]
