"""Options that several commands share."""

import os
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

_state_dir = partial(typer.Option, "--state-dir", envvar="REEF_STATE_DIR")
StateDir = Annotated[Path, _state_dir(help="Where the embedded stack keeps everything.")]
_OF_FILE = "The state of the stack. Default: `state_dir` of the file, or .reef."
StateDirOfFile = Annotated[Path | None, _state_dir(help=_OF_FILE)]
_URL = "The gateway. Default: $REEF_GATEWAY_URL, else the Reef that runs on --state-dir."
Url = Annotated[str | None, typer.Option("--url", help=_URL)]
_BROKER = "host:port of the broker. Default: the running stack's."
_bootstrap = typer.Option("--bootstrap", envvar="REEF_KAFKA_BOOTSTRAP", help=_BROKER)
Bootstrap = Annotated[str | None, _bootstrap]
Named = Annotated[str, typer.Argument(help="For example: default")]
Limit = Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

DEFAULT_STATE_DIR = Path(".reef")
# Tracebacks and completion of typer are for developers; errors here are single lines.
PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}


def program() -> str:
    """Return how to call `reef` here: by name if the shell finds it, else by path."""
    # .venv/bin/reef is not on the PATH: the printed commands must work when they are copied.
    called = sys.argv[0]
    if Path(called).name != "reef" or shutil.which("reef"):
        return "reef"
    below = Path(called).is_relative_to(Path.cwd())
    return shlex.quote(os.path.relpath(called) if below else called)


def state_dir_words(state_dir: Path) -> str:
    """Return ` --state-dir …` for a command, or "" if it is the usual directory."""
    return "" if state_dir == DEFAULT_STATE_DIR else f" --state-dir {shlex.quote(str(state_dir))}"


def no_stack_words(state_dir: Path, otherwise: str) -> str:
    """Return the message for a state directory on which no stack runs. `otherwise`: a way out."""
    start = f"{program()} serve -c serve.yaml{state_dir_words(state_dir)}"
    return f"no Reef runs on {state_dir}; start one ({start}), or {otherwise}"
