"""Options that several commands share, and how a command finds the gateway."""

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
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The gateway. Default: $REEF_GATEWAY_URL, else the Reef that runs on --state-dir; nothing else is tried.",
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

DEFAULT_STATE_DIR = Path(".reef")


def program() -> str:
    """How `reef` is called here: by its name where the shell finds it, else by the path by which it was called."""
    called = sys.argv[0]
    if Path(called).name != "reef" or shutil.which("reef"):
        return "reef"
    return shlex.quote(
        os.path.relpath(called) if Path(called).is_relative_to(Path.cwd()) else called
    )


def state_dir_words(state_dir: Path) -> str:
    """What has to be added to a command so that it finds this directory: ` --state-dir …`, or nothing for the usual one."""
    return "" if state_dir == DEFAULT_STATE_DIR else f" --state-dir {shlex.quote(str(state_dir))}"
