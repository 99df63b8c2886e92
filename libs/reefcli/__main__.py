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


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def app() -> None:
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGINT, _stop)
    if sys.argv[1:2] == ["demo"]:
        # Its end would take the broker away before the services, which then wait for it.
        signal.signal(signal.SIGTERM, _interrupt)
    from reefcli.main import cli

    cli()


if __name__ == "__main__":
    app()
