"""Options that several commands share."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

StateDir = Annotated[
    Path,
    typer.Option(
        "--state-dir",
        envvar="REEF_STATE_DIR",
        help="Where the embedded stack keeps everything.",
        show_default=True,
    ),
]
StateDirOfFile = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="REEF_STATE_DIR",
        help="The state of the stack. Default: `state_dir` of the file, or .reef.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The gateway. Default: $REEF_GATEWAY_URL, else the Reef that runs on --state-dir.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar="REEF_KAFKA_BOOTSTRAP",
        help="host:port of the broker. Default: the running stack's.",
    ),
]
Limit = Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

DEFAULT_STATE_DIR = Path(".reef")


def program() -> str:
    """Return the way to call `reef` from here: by name if the shell finds it, else by path."""
    # .venv/bin/reef is not on the PATH: the printed commands must work when they are copied.
    called = sys.argv[0]
    if Path(called).name != "reef" or shutil.which("reef"):
        return "reef"
    below = Path(called).is_relative_to(Path.cwd())
    return shlex.quote(os.path.relpath(called) if below else called)


def state_dir_words(state_dir: Path) -> str:
    """Return ` --state-dir …` for a command, or "" if it is the usual directory."""
    return "" if state_dir == DEFAULT_STATE_DIR else f" --state-dir {shlex.quote(str(state_dir))}"
