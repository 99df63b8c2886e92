"""Programs of models and recipes, run apart: own folder, no network, bounded, killed as a whole."""

# `reefkit.jail` is the inside. Three kinds, the first that works on this machine is used:
#
#   bubblewrap   bwrap: own mounts, processes and network; a filter of system calls
#   namespaces   the same by system calls of our own, and Landlock; needs no root
#   landlock     Landlock and the filter alone, as inside a container; no process may be started
#
# A program sees no files but the interpreter, its libraries and its folder, and no environment of
# the host. Only its output comes back, as text.

import asyncio
import json
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from reefcommon.artifacts import safe_path
from reefcommon.errors import BadConfig, Poison, ReefError, Unavailable
from reefcommon.recipe_context import Limits, Outcome
from reefkit.jail.launcher import Job
from reefkit.recipes.sandbox_process import Ended, watch

KINDS = ("bubblewrap", "namespaces", "landlock")
_PYTHON = str(Path(sys.executable).resolve())
_LIBRARIES = Path(__file__).resolve().parents[2]
_SITE = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
_READABLE = [*_SYSTEM, sys.base_prefix, *_SITE]
_BOOT = (
    f"import sys; sys.path.insert(0, {str(_LIBRARIES)!r});"
    " from reefkit.jail.launcher import main; main(sys.argv[1])"
)
_ONE_THREAD = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
_TRIED, _TRIAL = {"program.py": "print(6 * 7)", "stdin": ""}, Limits(wall_s=20.0, cpu_s=10.0)
_MAX_S, _MAX_MB, _MAX_PROCESSES, _MAX_NAME_BYTES = 1e8, 2**24, 1024, 255
_MB = 1024 * 1024


class Sandbox:
    """Runs programs. Thread-safe; at most `at_once` at a time, more wait."""

    def __init__(self, home: Path | None = None, *, kind: str = "", at_once: int = 0) -> None:
        """`home`: for the programs' folders. `kind`: use this kind only."""
        self._home, self._asked = home, kind
        self._pool = ThreadPoolExecutor(at_once or os.cpu_count() or 1, "sandbox")
        self._trying = threading.Lock()
        self._faults: dict[str, str] = {}

    def describe(self) -> str:
        """Return the isolation in use, for `/status`."""
        known: str | None = self.__dict__.get("kind")
        faults = "; ".join(f"{kind}: {fault}" for kind, fault in self._faults.items())
        return known or (f"none works: {faults}" if faults else "not used yet")

    @cached_property
    def kind(self) -> str:
        """The isolation of this machine. The first use tries it, for up to a second.

        Raises:
            BadConfig: no kind works. Then no program is run.
        """
        with self._trying:
            for kind in (self._asked,) if self._asked else KINDS:
                try:
                    found = self._run(_TRIED, _TRIAL, threading.Event(), kind)
                    if found.stdout == "42\n":
                        return kind
                    fault = found.stderr[-200:] or found.status
                except (ReefError, OSError) as error:
                    fault = str(error)
                self._faults[kind] = fault
        raise BadConfig(f"no sandbox works here ({self.describe()}): install bubblewrap")

    async def run(
        self,
        program: str,
        *,
        stdin: str = "",
        files: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Outcome:
        """Run a Python program. `files` lie beside it, and may be imported.

        Raises:
            BadConfig: no sandbox works on this machine.
            Poison: a file is no text inside a folder, or too large; or a limit is out of range.
            Unavailable: the sandbox cannot start now.
        """
        bounds, stop = limits or Limits(), threading.Event()
        check_limits(bounds)
        beside = checked_files({**(files or {}), "program.py": program, "stdin": stdin}, bounds)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._pool, lambda: self._run(beside, bounds, stop, self.kind)
            )
        finally:
            stop.set()  # a cancelled caller leaves no program behind

    def _run(
        self, files: Mapping[str, str], limits: Limits, stop: threading.Event, kind: str
    ) -> Outcome:
        folder = Path(tempfile.mkdtemp(prefix="reef-run-", dir=self._home))
        try:
            work = folder / "work"
            work.mkdir()
            job: Job = {
                "kind": kind,
                "work": str(work),
                "readable": _READABLE,
                "site": _SITE,
                "files": dict(files),
                "environment": environment(str(work)),
                "report": 0,
                "cpu_s": limits.cpu_s,
                "memory_mb": limits.memory_mb,
                "file_mb": limits.file_mb,
                "processes": limits.processes,
            }
            command = [_PYTHON, "-I", "-S", "-c", _BOOT, str(folder / "job.json")]
            if kind == "bubblewrap":
                command = _bubblewrap(folder, limits) + command
            # Only here is the folder on the host's disk; the other kinds have one in memory.
            watched = work if kind == "landlock" else None

            def write_job(report: int) -> None:
                (folder / "job.json").write_text(json.dumps({**job, "report": report}))

            ended = watch(command, write_job, limits, stop, watched)
        finally:
            shutil.rmtree(folder, onerror=_open_and_remove)
        return outcome(ended, limits)


def check_limits(limits: Limits) -> None:
    """Raises Poison if a limit is none."""
    # The kernel's refusal would look as if no program could be started now.
    least = {"processes": 0, "output_kb": 0, "memory_mb": 1, "file_mb": 1}
    most = {"wall_s": _MAX_S, "cpu_s": _MAX_S, "processes": _MAX_PROCESSES}
    for name, value in asdict(limits).items():
        low, high = least.get(name, 0.001), most.get(name, _MAX_MB)
        whole = not name.endswith("_s")
        sound = isinstance(value, int) or (isinstance(value, float) and not whole)
        if not sound or not low <= value <= high:
            raise Poison(f"Limits.{name} is a number from {low:g} to {high:g}, not {value!r:.80}")


def checked_files(files: Mapping[str, str], limits: Limits) -> dict[str, str]:
    """Return the files of a program by path. Raises Poison."""
    found: dict[str, str] = {}
    for name, text in files.items():
        if not isinstance(text, str):
            raise Poison(f"file {name!r:.80} of a program is a text, not {type(text).__name__}")
        path = safe_path(name.encode("utf-8", "replace").decode())
        if not path.parts or max(len(part.encode()) for part in path.parts) > _MAX_NAME_BYTES:
            raise Poison(f"file {name!r:.80} of a program has no name that a folder takes")
        found[str(path)] = text.encode("utf-8", "replace").decode()
    for name in found:
        if both := found.keys() & set(map(str, Path(name).parents)):
            raise Poison(f"a program has {min(both)!r:.80} as a file and as a folder")
    if (size := sum(len(text.encode()) for text in found.values())) > limits.file_mb * _MB:
        raise Poison(f"a program's files have {size} bytes; Limits.file_mb is {limits.file_mb}")
    return found


def environment(work: str) -> dict[str, str]:
    threads = {f"{name}_NUM_THREADS": "1" for name in _ONE_THREAD}
    own = {"HOME": work, "TMPDIR": work, "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    return own | threads


def outcome(ended: Ended, limits: Limits) -> Outcome:
    """Read the end of a program. Raises Unavailable if it was never started."""
    if fault := ended.report.get("fault"):
        raise Unavailable(f"the sandbox cannot start a program: {fault}")
    code, number = ended.report.get("code"), int(ended.report.get("signal") or 0)
    said = (ended.stdout, ended.stderr, ended.seconds)
    if ended.killed_for is not None:
        return Outcome(ended.killed_for, None, *said)
    if code == 0:
        return Outcome("ok", 0, *said)
    last_line = ended.stderr.rstrip().rpartition("\n")[2]
    if last_line.startswith("MemoryError") or "Cannot allocate memory" in last_line:
        return Outcome("memory", code, *said)
    if code is not None:
        return Outcome("failed", code, *said)
    # The kernel counts this bound by ticks, the report by run time: they differ under load.
    spent = float(ended.report.get("cpu_s", 0.0)) >= limits.cpu_s / 2
    if number == signal.SIGXCPU or (number == signal.SIGKILL and spent):
        return Outcome("timeout", None, *said)
    return Outcome("killed", None, *said)


def _bubblewrap(folder: Path, limits: Limits) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise Unavailable("bwrap is not installed")
    jail = [str(_LIBRARIES / "reefkit" / name) for name in ("__init__.py", "jail")]
    paths = [path for path in (*_READABLE, *jail, str(folder)) if os.path.lexists(path)]
    seen = [part for path in paths for part in ("--ro-bind", path, path)]
    work = ["--size", str(limits.file_mb * _MB), "--tmpfs", str(folder / "work")]
    apart = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    return [program, *apart, "--proc", "/proc", "--dev", "/dev", *seen, *work, "--"]


def _open_and_remove(remove: object, path: str, _error: object) -> None:
    # A program may take away the rights to its own folders.
    parent = Path(path).parent
    parent.chmod(0o700)
    if Path(path).is_dir() and not Path(path).is_symlink():
        Path(path).chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
    else:
        Path(path).unlink(missing_ok=True)
    assert callable(remove)
