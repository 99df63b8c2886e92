"""The folder of an episode, and the search for what a killed host has left."""

# The name of the folder, and a variable of each of its processes, say which host has made it. A
# host that starts removes those of hosts that are gone.

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import structlog

from reefcommon.artifacts import safe_path
from reefcommon.ids import digest

log = structlog.get_logger()

MARK = "REEF_EPISODE"
_MAX_FILES, _MAX_FILE_BYTES, _MAX_BYTES = 64, 64 * 1024, 512 * 1024
_MAX_PATH_BYTES, _FULL = 4000, 2**62
_MAX_LOG_BYTES = 8 * 1024 * 1024


class Folder:
    """`agent` is the installation's root, `agent_home` its files, `home` HOME, `work` the folder
    that the agent is started in.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.agent, self.home, self.work = root / "agent", root / "home", root / "work"
        self.agent_home = self.agent / "home"

    @property
    def mark(self) -> str:
        """The value of `MARK` for its processes."""
        return f"{_place(self.root.parent)}/{self.root.name}"

    @classmethod
    def make(cls, place: Path) -> "Folder":
        """Make a folder below `place`. Only its owner can enter it."""
        folder = cls(place.resolve() / f"{_host(os.getpid())}-{uuid4().hex[:12]}")
        for path in (folder.agent_home, folder.home, folder.work):
            path.mkdir(parents=True)
        folder.root.chmod(0o700)
        home, ids = folder.home, f"{os.getuid()}:{os.getgid()}"
        (folder.root / "passwd").write_text(f"agent:x:{ids}::{home}:/bin/sh\n")
        return folder

    def write(self, files: Mapping[str, bytes], below: Path) -> None:
        """Write files. Raises Poison if a path leads out."""
        for name, body in files.items():
            path = below / safe_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

    def texts(self) -> dict[str, str]:
        """Return the files of `work` that are text, at most 64 files of 64 kB."""
        found: dict[str, str] = {}
        left = _MAX_BYTES
        for path in _files(self.work):
            if len(found) == _MAX_FILES or left <= 0:
                break
            with contextlib.suppress(OSError, UnicodeDecodeError):
                body = _read(path, _MAX_FILE_BYTES + 1)
                if len(body) <= min(_MAX_FILE_BYTES, left):
                    name = os.fsencode(path.relative_to(self.work)).decode("utf-8", "replace")
                    found[name] = body.decode()
                    left -= len(body)
        return found

    def log(self, pattern: str) -> str:
        """Return the newest of the agent's own logs; "" if there is none."""
        home, found = self.agent_home.resolve(), self.agent_home.glob(pattern) if pattern else ()
        inside = [path for path in found if path.resolve().is_relative_to(home) and path.is_file()]
        logs = sorted(inside, key=lambda path: path.lstat().st_mtime)
        return _read(logs[-1], _MAX_LOG_BYTES).decode("utf-8", "replace") if logs else ""

    def size(self) -> int:
        """Return the bytes on the disk. A folder that is too deep to look into counts as full."""
        total = 0
        for entry in _entries(self.root):
            if len(os.fsencode(entry.path)) > _MAX_PATH_BYTES:
                return _FULL
            with contextlib.suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
        return total

    def remove(self) -> None:
        """Remove all of it, also folders that an agent has locked."""
        # By programs whose depth and length of a path have no limit: Python's ends at 1,000.
        for command in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):
            with contextlib.suppress(OSError):
                subprocess.run(  # noqa: S603 - commands of ours
                    [*command, "--", str(self.root)], capture_output=True, check=False
                )


def end_processes(mark: str) -> int:
    """End every process of an episode; return their number."""
    return sum(_ended(process) for process, found in _marked() if found == mark)


def sweep(place: Path) -> int:
    """End the processes and remove the folders of hosts that are gone; return their number."""
    here, count = _place(place), 0
    for process, mark in _marked():
        where, _, name = mark.partition("/")
        if where == here and not _alive(name):
            count += _ended(process)
    for root in place.glob("*-*-*"):
        if not _alive(root.name):
            Folder(root).remove()
            count += 1
    if count:
        log.warning("episodes_swept", place=str(place), left_over=count)
    return count


def _marked() -> Iterator[tuple[int, str]]:
    prefix = f"{MARK}=".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                for part in (entry / "environ").read_bytes().split(b"\0"):
                    if part.startswith(prefix):
                        yield int(entry.name), part[len(prefix) :].decode("utf-8", "replace")


def _ended(process: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def _place(place: Path) -> str:
    return digest("episodes", str(place.resolve()), length=16)


def _host(process: int) -> str:
    # With its start: process ids come again.
    stat = Path(f"/proc/{process}/stat").read_text()
    return f"{process}-{stat.rpartition(')')[2].split()[19]}"


def _alive(name: str) -> bool:
    host, _, _ = name.rpartition("-")
    process = host.partition("-")[0]
    try:
        return process.isdigit() and _host(int(process)) == host
    except OSError:
        return False


def _files(folder: Path) -> Iterator[Path]:
    for entry in _entries(folder):
        with contextlib.suppress(OSError):
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all that is below a folder, however deep, a folder before what is in it."""
    left = [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:  # locked, gone, or too long a path
            continue
        inner = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from entries
        left += [entry.path for entry in reversed(inner)]


def _read(path: Path, most: int) -> bytes:
    # A link put there meanwhile would lead to files of the host.
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(number, "rb") as stream:
        return stream.read(most)
