"""Ctrl-C while `reef serve` still imports what it needs: one line instead of a traceback. Imports nothing but the standard library."""

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 128 + signal.SIGINT


def watch() -> None:
    """From now on Ctrl-C ends `reef serve` with one line; until it starts something, and listens for Ctrl-C itself."""
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGINT, _stop)


def _stop(_number: int, _frame: FrameType | None) -> None:
    os.write(
        sys.stderr.fileno(), b"reef: stopped before anything was started\n"
    )  # a buffered write cannot be entered twice
    raise SystemExit(_INTERRUPTED)
