"""The host's side of a sandboxed program: bounded reading, deadlines, the kill of all of it."""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
import structlog

from reefcommon.recipe_context import Limits
from reefkit.jail.kernel import AHEAD_OF_ALL

log = structlog.get_logger()

_LOOK_EVERY_S = 0.05
_MB = 1024 * 1024
_LAST_WORDS_S = 5.0
_REPORT_BYTES = 4096
_PIPE = subprocess.PIPE
# A session of its own: one signal reaches the launcher and all that has not left it. The launcher's
# death takes the rest along. It inherits no environment: it holds secrets.
_APART: dict[str, Any] = {"env": {}, "cwd": "/", "start_new_session": True}
_APART |= {"stdin": subprocess.DEVNULL, "stdout": _PIPE, "stderr": _PIPE}
KilledFor = Literal["timeout", "output", "killed"]


@dataclass(slots=True)
class Ended:
    """The end of a program. `killed_for`: the bound that it met; `report`: the launcher's."""

    stdout: str
    stderr: str
    seconds: float
    killed_for: KilledFor | None
    report: dict[str, Any]


@dataclass(slots=True)
class _Stream:
    limit: int
    data: bytearray = field(default_factory=bytearray)
    over: bool = False

    def add(self, chunk: bytes) -> None:
        self.over = self.over or len(self.data) + len(chunk) > self.limit
        self.data += chunk[: self.limit - len(self.data)]

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


def watch(
    command: Sequence[str],
    write_job: Callable[[int], None],
    limits: Limits,
    stop: threading.Event,
    watched: Path | None,
) -> Ended:
    """Run the launcher until its program has ended or met a bound. Blocks.

    `write_job` receives the number of the report's pipe; `watched`: a folder whose size is bounded.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as report:
        try:
            write_job(writing)
            began = time.monotonic()
            process = subprocess.Popen(  # noqa: S603 - the purpose of this module
                [*AHEAD_OF_ALL, *command] if limits.processes else command,
                **_APART,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        with process:
            try:
                out, err, told, reason = _read(process, report, limits, stop, watched)
            finally:
                _kill(process)
    facts: dict[str, Any] = orjson.loads(told.data) if told.data else {}
    if reason is None and ("stopped" in facts or not facts):
        reason = "killed"
    return Ended(out.text, err.text, time.monotonic() - began, reason, facts)


def _read(
    process: "subprocess.Popen[bytes]",
    report: BinaryIO,
    limits: Limits,
    stop: threading.Event,
    watched: Path | None,
) -> tuple[_Stream, _Stream, _Stream, KilledFor | None]:
    """Read all pipes to their end. The kill of a program closes them."""
    bound, end = limits.output_kb * 1024, time.monotonic() + limits.wall_s
    out, err, told = _Stream(bound), _Stream(bound), _Stream(_REPORT_BYTES)
    reason: KilledFor | None = None
    with selectors.DefaultSelector() as selector:
        for source, stream in ((process.stdout, out), (process.stderr, err), (report, told)):
            assert source is not None
            selector.register(source, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select(_LOOK_EVERY_S):
                chunk = os.read(key.fd, 65536)
                key.data.add(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            late = time.monotonic() > end
            if reason is None:
                flood = out.over or err.over
                flood = flood or (watched is not None and _size(watched) > limits.file_mb * _MB)
                reason = "output" if flood else "timeout" if late else None
                reason = reason or ("killed" if stop.is_set() else None)
                if reason is not None:
                    _kill(process)
                    end = time.monotonic() + _LAST_WORDS_S
            elif late:
                log.error("program_outlives_its_kill", pid=process.pid)
                break
    return out, err, told, reason


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(Path(parent) / name).st_blocks * 512
    return total
