"""The files of the state directory, other than the programs' own data.

lock          held by the `reef serve` that runs on it       logs/   a file for each program
secrets.json  credentials of the local S3, mode 0600
stack.json    the run: ports, URLs, processes. Valid only while its process lives
"""

import contextlib
import os
import secrets as random_secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from reefcommon.files import lock
from reefstack.errors import CannotStart


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class Secrets(_Kept):
    """Credentials of a state directory, and the id of its processes."""

    stack_id: str
    s3_access_key: str
    s3_secret_key: str


class ProcessRecord(_Kept):
    """A process of a run. Its start time `created` (s) tells it from a later one with its pid."""

    pid: int
    created: float


class StackState(_Kept):
    """A run of the stack, as other commands find it."""

    pid: int
    created: float
    started_at: float
    phase: Literal["starting", "ready", "ended"] = "starting"
    config: str = ""
    ports: dict[str, int] = {}
    urls: dict[str, str] = {}
    processes: dict[str, ProcessRecord] = {}
    planned: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()

    @property
    def progress(self) -> str:
        """The progress of a start: `7 of 10 up`."""
        return f"{len(set(self.ready) & set(self.planned))} of {len(self.planned)} up"

    @property
    def alive(self) -> bool:
        """Whether the supervisor that wrote this still runs."""
        return self.phase != "ended" and same_process(self.pid, self.created)


def same_process(pid: int, created: float) -> bool:
    """Whether process `pid` lives and started at `created`."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def secrets_of(state_dir: Path) -> Secrets:
    """The credentials of this directory, made at the first call. Raises CannotStart."""
    path = state_dir / "secrets.json"
    try:
        return Secrets.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        made = Secrets(
            stack_id=random_secrets.token_hex(8),
            s3_access_key=random_secrets.token_hex(10).upper(),
            s3_secret_key=random_secrets.token_hex(20),
        )
        write_private(path, made.model_dump_json().encode())
        return made
    except (ValidationError, OSError) as error:
        remedy = "restore it, or start on another --state-dir"
        raise CannotStart(f"{path} cannot be read ({type(error).__name__}): {remedy}") from None


def why_no_directory(state_dir: Path) -> str:
    """A message if a file lies in the place of the directory or of a parent, else ""."""
    here = state_dir.absolute()
    file = next((path for path in (here, *here.parents) if path.is_file()), None)
    if file is None:
        return ""
    what = "it" if file == here else str(file)
    fault = f"cannot use the state directory {state_dir}: {what} is a file, not a directory"
    return f"{fault}. Name a directory with --state-dir."


def read_state(state_dir: Path) -> StackState | None:
    """The last run on this directory, alive or not. Raises CannotStart: it cannot be read."""
    try:
        return StackState.model_validate_json((state_dir / "stack.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    except OSError as error:
        reason = f"cannot read the state directory {state_dir}: {error.strerror}. Whose is it?"
        raise CannotStart(why_no_directory(state_dir) or reason) from None


def running(state_dir: Path) -> StackState | None:
    """The run that is alive on this directory, or None."""
    state = read_state(state_dir)
    return state if state is not None and state.alive else None


def write_state(state_dir: Path, state: StackState) -> None:
    """Write `stack.json`."""
    write_private(state_dir / "stack.json", state.model_dump_json(indent=2).encode())


def new_state(**run: Any) -> StackState:
    """The record of a run that begins now, in this process. `run`: further fields."""
    me = psutil.Process()
    return StackState(pid=me.pid, created=me.create_time(), started_at=time.time(), **run)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[Path]:
    """Hold the directory. Raises CannotStart: it is in use, or cannot be written."""
    state_dir = directory.absolute()
    try:
        descriptor = lock(state_dir / "lock")
    except OSError as error:
        fault = f"cannot use the state directory {state_dir}: {error.strerror}"
        remedy = "Choose another with --state-dir."
        raise CannotStart(why_no_directory(directory) or f"{fault}. {remedy}") from None
    if descriptor is None:
        holder = (state_dir / "lock").read_text(errors="replace").strip()
        remedy = "Stop it (Ctrl-C there), or start a second stack with another --state-dir."
        raise CannotStart(f"{state_dir} is in use by {holder or 'another process'}. {remedy}")
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"`reef serve`, pid {os.getpid()}".encode(), 0)
        yield state_dir
    finally:
        os.close(descriptor)
