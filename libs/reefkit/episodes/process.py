"""An agent's process: started by its launcher, bounded, and ended with all that it started."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from reefcommon.errors import Transient
from reefkit.episodes.folder import MARK, Folder, end_processes

log = structlog.get_logger()

_START_S, _END_S = 30.0, 15.0
_KEPT_BYTES = 256 * 1024
_FOLDER_EVERY_S = 2.0
_LASTING = ("FileNotFoundError", "PermissionError", "OSError: [Errno 8]")  # 8: no program


class BrokenAgent(Transient):
    """The agent's program cannot run: another try would end alike."""


@dataclass(frozen=True, slots=True)
class Bounds:
    timeout_s: float = 600.0
    # An agent may print each part of an answer again with all that came before it.
    output_bytes: int = 64 * 1024 * 1024
    folder_bytes: int = 512 * 1024 * 1024
    memory_mb: int = 4096
    processes: int = 256


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an agent. `printed`, `errors`: the last part of each."""

    stopped: Literal["", "timeout", "output", "memory", "processes"]
    code: int | None
    printed: str
    errors: str


@dataclass(slots=True)
class _Tail:
    most: int
    count: int = 0
    data: bytearray = field(default_factory=bytearray)

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read to the end. Returns early if there is too much."""
        while self.count <= self.most and (chunk := await stream.read(65536)):
            self.count += len(chunk)
            self.data += chunk
            del self.data[:-_KEPT_BYTES]

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(slots=True)
class AgentProcess:
    """A launcher that waits for its agent. `listener`: a socket on the agent's loopback."""

    process: asyncio.subprocess.Process
    control: socket.socket
    listener: socket.socket

    async def run(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Folder, bounds: Bounds
    ) -> Ended:
        """Run the agent until it ends or meets a bound. Raises Transient if it cannot start."""
        job = {
            "argv": argv,
            "environment": dict(environment),
            "folder": str(folder.work),
            "memory_mb": bounds.memory_mb,
            "processes": bounds.processes,
        }
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.control, json.dumps(job).encode() + b"\n")
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = _Tail(bounds.output_bytes), _Tail(bounds.output_bytes)
        reading = [
            asyncio.create_task(out.read(self.process.stdout)),
            asyncio.create_task(err.read(self.process.stderr)),
            asyncio.create_task(_outgrown(folder, bounds.folder_bytes)),
        ]
        ending = asyncio.create_task(self._report())
        try:
            # A pipe that ends early says little: an agent may close it and go on.
            stopped = await self._first(ending, reading, (out, err), bounds)
        finally:
            for task in (*reading, ending):
                task.cancel()
            await asyncio.gather(*reading, ending, return_exceptions=True)
        report: dict[str, Any] = {} if stopped else ending.result()
        if not stopped and "fault" in report:
            lasting = report["fault"].startswith(_LASTING)
            kind = BrokenAgent if lasting else Transient
            raise kind(f"the agent cannot be started: {report['fault']}")
        if not stopped and not report:
            raise Transient("the agent's launcher was ended")
        return Ended(stopped or report.get("over", ""), report.get("code"), out.text, err.text)

    async def _first(
        self,
        ending: "asyncio.Task[dict[str, Any]]",
        reading: "Sequence[asyncio.Task[None]]",
        tails: tuple[_Tail, _Tail],
        bounds: Bounds,
    ) -> Literal["", "timeout", "output"]:
        end = asyncio.get_running_loop().time() + bounds.timeout_s
        while True:
            left = end - asyncio.get_running_loop().time()
            tasks: list[asyncio.Task[Any]] = [ending, *reading]
            pending = [task for task in tasks if not task.done()]
            await asyncio.wait(pending, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
            if reading[2].done() or any(tail.count > tail.most for tail in tails):
                return "output"
            if ending.done():
                # All writers are gone: the rest of the pipes comes at once.
                await asyncio.wait(reading[:2], timeout=_END_S)
                flood = any(tail.count > tail.most for tail in tails)
                return "output" if flood else ""
            if left <= 0:
                return "timeout"

    async def _report(self) -> dict[str, Any]:
        loop, said = asyncio.get_running_loop(), b""
        while chunk := await loop.sock_recv(self.control, 4096):
            said += chunk
        return json.loads(said) if said else {}

    async def end(self, mark: str) -> None:
        """End whatever is left."""
        self.control.close()  # the launcher ends its processes, then itself
        try:
            async with asyncio.timeout(_END_S):
                # Else a full pipe would hold up a process that is being ended.
                await asyncio.gather(_drain(self.process.stdout), _drain(self.process.stderr))
                await self.process.wait()
        except TimeoutError:
            log.error("episode_outlives_its_end", process=self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await asyncio.to_thread(end_processes, mark)
        await self.process.wait()


@asynccontextmanager
async def launched(
    command: Sequence[str], control: int, ours: socket.socket, mark: str
) -> AsyncIterator[AgentProcess]:
    """Start a launcher, whose end of the socket is `control`. Raises Transient if it fails."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            pass_fds=(control,),
            env={MARK: mark},  # the host's own holds secrets
            cwd="/",
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        os.close(control)
    ours.settimeout(_START_S)
    listener: socket.socket | None = None
    try:
        said, numbers, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 64, 1)
        if said != b"listening" or not numbers:
            assert process.stderr is not None
            errors = (await process.stderr.read(2000)).decode("utf-8", "replace").strip()
            raise Transient(f"the agent's launcher failed: {errors[-300:] or 'it ended at once'}")
        listener = socket.socket(fileno=numbers[0])
        ours.setblocking(False)
        agent = AgentProcess(process, ours, listener)
    except TimeoutError as error:
        raise Transient(f"the agent's launcher did not answer in {_START_S:g} s") from error
    finally:
        if listener is None:
            await finished(AgentProcess(process, ours, ours).end(mark))
    try:
        yield agent
    finally:
        try:
            await finished(agent.end(mark))
        finally:
            listener.close()


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Do work to its end, also if the caller is cancelled meanwhile, even several times."""
    task, cancelled = asyncio.create_task(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


async def _drain(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(65536):
        pass


async def _outgrown(folder: Folder, most: int) -> None:
    while True:
        if await asyncio.to_thread(folder.size) > most:
            return
        await asyncio.sleep(_FOLDER_EVERY_S)
