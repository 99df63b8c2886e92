"""A child of the stack: started in its own process group, and ended with all its descendants."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import psutil

from reefstack.errors import CannotStart
from reefstack.spec import ProcessSpec
from reefstack.state import ProcessRecord, same_process, write_private

# In the environment of every descendant: the remains of a killed run are found by it.
STACK_VARIABLE = "_REEF_STACK"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _begin(niceness: int) -> None:
    # In the child, before exec. A group, but no session: the kernel shares the CPU among sessions
    # first, whatever the nice values of their programs (sched(7), "The autogroup feature").
    os.setpgid(0, 0)
    os.nice(niceness)
    if _libc is not None:  # the kernel sends SIGTERM when the supervisor is gone
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@dataclass(slots=True)
class Child:
    """A started program. Its process id is also its process group's."""

    spec: ProcessSpec
    process: asyncio.subprocess.Process
    record: ProcessRecord

    @property
    def ended(self) -> bool:
        """Whether the program itself has exited."""
        return self.process.returncode is not None

    def signal_group(self, number: int) -> None:
        """Send a signal to the program's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.record.pid, number)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM to the group, `grace_s` seconds, SIGKILL. Return when the group is empty."""
        self.signal_group(signal.SIGTERM)
        if not await self._gone_within(grace_s):
            self.signal_group(signal.SIGKILL)
            await self._gone_within(5.0)

    async def _gone_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            if self.ended and not group_members(self.record.pid):
                return True
            left = deadline - loop.time()
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), min(left, 0.2))
            if self.ended:
                await asyncio.sleep(min(left, 0.03))


async def spawn(spec: ProcessSpec, base_env: Mapping[str, str], stack_id: str) -> Child:
    """Start a program: files written, output appended to its log, no input.

    Raises:
        CannotStart: the program is not there, or may not be run.
    """
    for directory in (*spec.directories, spec.log.parent, spec.cwd or spec.log.parent):
        directory.mkdir(parents=True, exist_ok=True)
    for path, text in spec.files.items():
        write_private(path, text.encode())
    env = {**base_env, **spec.env, STACK_VARIABLE: f"{stack_id}:{spec.name}"}
    with spec.log.open("ab") as log:
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=spec.cwd,
                preexec_fn=partial(_begin, spec.niceness),  # calls that take no lock
            )
        except OSError as error:
            reason = f"{spec.name}: cannot run {spec.argv[0]} ({error.strerror})"
            raise CannotStart(reason) from None
    created = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        created = psutil.Process(process.pid).create_time()
    return Child(spec, process, ProcessRecord(pid=process.pid, created=created))


def group_members(group: int) -> list[int]:
    """The living processes of a group. Zombies do not count."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def remains(stack_id: str, recorded: Iterable[ProcessRecord] = ()) -> list[psutil.Process]:
    """Living processes, other than this one, that an earlier run on this directory started."""
    found = []
    # by a mark in the environment; those that hide it, by pid and start time together
    known = {record.pid: record.created for record in recorded}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            pid = process.pid
            marked = _mark(process).partition(":")[0] == stack_id
            ours = pid != os.getpid() and (marked or same_process(pid, known.get(pid, -1.0)))
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def sweep(
    stack_id: str, recorded: Iterable[ProcessRecord] = (), *, grace_s: float = 10.0
) -> list[str]:
    """End them: SIGTERM, `grace_s` seconds, SIGKILL. Return their names."""
    recorded = tuple(recorded)
    found = remains(stack_id, recorded)
    names = [_describe(process) for process in found]
    for process in found:  # psutil checks the start time, so a reused pid is safe
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5.0)
    deadline = time.monotonic() + 5.0
    while remains(stack_id, recorded) and time.monotonic() < deadline:
        time.sleep(0.05)
    return names


def _describe(process: psutil.Process) -> str:
    return f"{_mark(process).partition(':')[2] or 'process'} (pid {process.pid})"


def _mark(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(STACK_VARIABLE, ""))
    except (psutil.Error, OSError):
        return ""
