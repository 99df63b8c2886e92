"""StepProcess as a child process that speaks JSON lines, kept between steps."""

import asyncio
import contextlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog
from pydantic import BaseModel

from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.recipe import WeightRecipe
from reefkit.jobs.faults import StepTimeout
from reefkit.recipe_binding import Binding
from services.trainer.ports import StateDamaged, StepReply, StepRequest

log = structlog.get_logger()

STOP_WITHIN_S = 3.0
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"} | QUIET
TAIL_BYTES = 2_000
MAX_LOG_BYTES = 16 * 1024 * 1024
FULL_BELOW_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class ChildProcess:
    """The step process of a binding: a single step at a time."""

    binding: Binding[WeightRecipe]
    model_path: Path
    log_path: Path
    timeout_s: float
    niceness: int
    _child: asyncio.subprocess.Process | None = None

    async def step(self, request: StepRequest) -> StepReply:
        """Raises also Unavailable: a full disk, or no device for the learner."""
        await asyncio.to_thread(bound_log, self.log_path)
        try:
            async with asyncio.timeout(self.timeout_s):
                child = self._child or await self._start()
                reply = await self._ask(child, request)
        except TimeoutError:
            await self.stop()
            raise StepTimeout(
                f"the step took longer than {self.timeout_s:.0f} s and was stopped"
                " (REEF_TRAINER_STEP_TIMEOUT_S)"
            ) from None
        # The rest of an answer that was not read would be taken for the next.
        except (asyncio.CancelledError, ValueError):
            await self.stop()
            raise
        if "ok" in reply and reply.get("job") == request.job_id:
            return StepReply(**reply["ok"])
        if "away" in reply:
            raise Unavailable(reply["away"])
        await self.stop()  # a batch that failed half-way leaves a learner in an unknown state
        if "damaged" in reply:
            raise StateDamaged(reply["damaged"])
        if "poison" not in reply:
            raise Transient(f"the step process answered another question: {str(reply)[:200]}")
        self._check_disk(f"the step failed: {reply['poison']}")
        error = Poison(reply["poison"])
        error.add_note(reply.get("trace", ""))
        raise error

    async def stop(self) -> None:
        child, self._child = self._child, None
        if child is None or child.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = ("-m", "services.trainer.worker", self.binding.dotted, str(self.model_path))
        with self.log_path.open("ab") as errors:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                str(self.niceness),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=os.environ | ENVIRONMENT,
                limit=1 << 24,
            )
        self._child = child
        log.info("step_process_started", binding=self.binding.key, pid=child.pid)
        await self._write(child, self.binding.recipe.knobs)
        return child

    async def _ask(self, child: asyncio.subprocess.Process, request: StepRequest) -> dict[str, Any]:
        await self._write(child, request)
        assert child.stdout is not None
        answer = await child.stdout.readline()
        if not answer.endswith(b"\n"):
            code = await child.wait()
            self._child = None
            why = f"the step process ended with code {code}: {self._tail()}"
            self._check_disk(why)
            raise Transient(why)
        reply: dict[str, Any] = orjson.loads(answer)
        return reply

    async def _write(self, child: asyncio.subprocess.Process, line: BaseModel) -> None:
        assert child.stdin is not None
        # A dead child is found by the read that follows, which knows the exit code. uvloop raises
        # RuntimeError for a pipe that it has closed because the other end is gone.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
            child.stdin.write(line.model_dump_json().encode() + b"\n")
            await child.stdin.drain()

    def _check_disk(self, why: str) -> None:
        # Libraries word a failed write in their own ways, and no sample is at fault.
        if (free := shutil.disk_usage(self.log_path.parent).free) < FULL_BELOW_BYTES:
            full = f"the disk is full ({free / 1024**2:.0f} MB are free in {self.log_path.parent})"
            raise Unavailable(f"{why}; {full}")

    def _tail(self) -> str:
        with self.log_path.open("rb") as stream:
            stream.seek(max(self.log_path.stat().st_size - TAIL_BYTES, 0))
            lines = stream.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"nothing was printed, see {self.log_path}"


def bound_log(path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move the text of a log that is too large to `<name>.1`; a process may append to it."""
    if path.is_file() and path.stat().st_size > max_bytes:
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
