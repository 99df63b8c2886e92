"""Room for the log on the disk."""

import shutil
from collections.abc import Callable
from pathlib import Path

from reefstack.errors import CannotStart

MIN_FREE_BYTES = 1024**3
FULL_BELOW_BYTES = 16 * 1024**2


def free_bytes(path: Path) -> int:
    """The room that is left on the disk of `path`."""
    return shutil.disk_usage(path).free


def check_disk(state_dir: Path, *, free: Callable[[Path], int] = free_bytes) -> None:
    """Refuse a nearly full disk before anything starts.

    Raises:
        CannotStart: less than 1 GB is free.
    """
    left = free(state_dir)
    if left < MIN_FREE_BYTES:
        fault = f"only {left / 1024**2:.0f} MB are free where {state_dir} lies, 1 GB is needed"
        raise CannotStart(f"{fault}. Free some space, or choose another --state-dir.")


def why_no_room(state_dir: Path) -> str:
    """Why no program is started on this disk now, "" if there is room."""
    # a program that cannot write its files ends as soon as it has to, again and again
    left = free_bytes(state_dir)
    if left >= FULL_BELOW_BYTES:
        return ""
    return f"waits for room: {left / 1024**2:.0f} MB are free where {state_dir} lies"
