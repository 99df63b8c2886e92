"""How an agent is kept apart: the command that its launcher is started with."""

# bubblewrap   own mounts, processes and network: it sees the system's programs, its own program and
#              its folder; its network is a loopback of its own, on which the host's relay listens
# local        a process of the host. All that it starts is ended with it, and no more is held.

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from reefcommon.config_agent import Isolation
from reefcommon.errors import BadConfig
from reefkit.jail.kernel import AHEAD_OF_ALL

_PYTHON = str(Path(sys.executable).resolve())
_LIBRARIES = Path(__file__).resolve().parents[2]
_JAIL = [str(_LIBRARIES / "reefkit" / name) for name in ("__init__.py", "jail")]
_BOOT = (
    f"import sys; sys.path.insert(0, {str(_LIBRARIES)!r});"
    " from reefkit.jail.agent import main; main(sys.argv[1])"
)
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/ssl"),
)
_MEMORY, _MEMORY_BYTES = ("/tmp", "/dev/shm"), 128 * 1024 * 1024  # noqa: S108
_TRIAL_S = 20.0


def command(
    isolation: Isolation, folder: Path, readable: Sequence[Path], control: int
) -> list[str]:
    """Return the command of a launcher. Raises BadConfig if bubblewrap is not installed."""
    apart = [] if isolation == "local" else _bubblewrap(folder, readable)
    return [*AHEAD_OF_ALL, *apart, _PYTHON, "-I", "-S", "-c", _BOOT, str(control)]


def check(isolation: Isolation) -> None:
    """Try an isolation on this machine. Blocks for up to a second. Raises BadConfig."""
    if isolation == "local":
        return
    tried = [*_bubblewrap(None, ()), _PYTHON, "-I", "-S", "-c", "print(6 * 7)"]
    try:
        done = subprocess.run(  # noqa: S603 - a command of ours
            tried, capture_output=True, text=True, timeout=_TRIAL_S, check=False, env={}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(str(error)) from error
    if done.stdout != "42\n":
        raise _unusable(done.stderr.strip()[-200:] or f"it ended with {done.returncode}")


def _bubblewrap(folder: Path | None, readable: Sequence[Path]) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise _unusable("it is not installed")
    paths = [*_SYSTEM, sys.base_prefix, *_JAIL, *map(str, readable)]
    seen = [part for path in paths if os.path.lexists(path) for part in ("--ro-bind", path, path)]
    own = ["--bind", str(folder), str(folder)] if folder is not None else []
    users = ["--ro-bind", str(folder / "passwd"), "/etc/passwd"] if folder is not None else []
    apart = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    # What is in memory has a bound, and the rest is not to be written: else it could be filled up.
    memory = [part for path in _MEMORY for part in ("--size", str(_MEMORY_BYTES), "--tmpfs", path)]
    fixed = [part for path in ("/dev", "/") for part in ("--remount-ro", path)]
    return [
        *(program, *apart, "--proc", "/proc", "--dev", "/dev", *memory),
        *(*seen, *own, *users, *fixed, "--"),
    ]


def _unusable(reason: str) -> BadConfig:
    return BadConfig(
        f"evaluation.agent.isolation: bubblewrap cannot be used here: {reason}. Install bwrap and"
        " allow it user namespaces, or name `local`, under which agents have the evaluator's rights"
    )
