"""The `reef` command, also as `python -m reefcli`.

It listens for Ctrl-C before the imports of `reef serve`: they take a second.
"""

import os
import signal
import sys
from types import FrameType


def _stop(_number: int, _frame: FrameType | None) -> None:
    # os.write: a buffered write cannot be entered twice, and the signal may interrupt one.
    os.write(sys.stderr.fileno(), b"reef: stopped before anything was started\n")
    # No exception: it would be raised inside of a recipe's import, which may catch it.
    os._exit(128 + signal.SIGINT)


def app() -> None:
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGINT, _stop)
    from reefcli.main import cli

    cli()


if __name__ == "__main__":
    app()
