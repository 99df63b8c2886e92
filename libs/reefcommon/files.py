"""Files that outlive a power cut, and locks of directories."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces of a mebibyte."""
    with path.open("rb") as stream:
        while chunk := stream.read(1024 * 1024):
            yield chunk


def write_synced(path: Path, chunks: Iterator[bytes]) -> None:
    # Without the sync a rename may be durable before the bytes are.
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        for chunk in chunks:
            stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path) -> int | None:
    """Lock a file for this process, made with its directory. None: another process has it.

    The lock ends when the descriptor is closed, at the latest with the process. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor
