"""`reef doctor`: what is missing on this machine, and what to do about it."""

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import psutil
import typer

from reefcli.checks import check_config, check_state_dir, read_config
from reefcli.options import DEFAULT_STATE_DIR, AsJson
from reefcli.output import console, print_json, print_table
from reefcommon.errors import ReefError
from reefstack import ports, seaweedfs, tansu, valkey
from reefstack.disk import check_disk
from reefstack.state import StackState, running

_MODULES = {
    "torch": "pip install torch==2.13.0 (make setup takes the CPU build)",
    "transformers": "pip install 'reef-agent[learn]'",
    "peft": "pip install 'reef-agent[learn]'",
    "chdb": "pip install chdb, or name a ClickHouse under `external.clickhouse`",
}
_MEMORY_NEEDED = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` says what to do where it is not well."""

    what: str
    state: Literal["ok", "warning", "missing", "wrong"]
    detail: str
    advice: str = ""


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A serve.yaml to check as well.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="REEF_STATE_DIR",
            help="Where everything is kept. Default: `state_dir` of the file, or .reef.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at this machine: Python, programs, libraries, ports, disk, memory, and a serve.yaml.

    Exit code 0 when everything that is needed is there; 1 otherwise.

    Examples:

      reef doctor

      reef doctor -c serve.yaml --json
    """
    findings = list(examine(config, state_dir))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(("what", "state", "detail"), [(f.what, f.state, f.detail) for f in findings])
        for finding in findings:
            if finding.advice:
                console().print(f"→ {finding.what}: {finding.advice}", markup=False, soft_wrap=True)
    if any(finding.state in ("missing", "wrong") for finding in findings):
        raise typer.Exit(1)


def examine(config: Path | None, named: Path | None) -> Iterator[Finding]:
    """Everything that is looked at, in order. `named`: the state directory, where it is not the file's."""
    checked, state_dir = _config(config, named)
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    yield Finding(
        "python",
        "ok" if good else "missing",
        f"{version} at {sys.executable}",
        "" if good else "install Python 3.11 or newer",
    )
    yield _attempt("broker (Tansu)", tansu.binary)
    yield _attempt("object store (SeaweedFS)", seaweedfs.binary)
    yield _attempt("release heads (Valkey)", valkey.binary)
    for module, advice in _MODULES.items():
        there = importlib.util.find_spec(module) is not None
        yield Finding(
            f"library {module}",
            "ok" if there else "missing",
            "installed" if there else "not installed",
            "" if there else advice,
        )
    lfs = shutil.which("git-lfs")
    advice = "optional: apt-get install git-lfs; without it artifacts are stored through dulwich"
    yield Finding(
        "git-lfs", "ok" if lfs else "warning", lfs or "not installed", "" if lfs else advice
    )
    place = _attempt("state directory", lambda: _state_dir(state_dir), "wrong")
    yield place
    if place.state == "ok":
        yield _attempt("disk", lambda: _disk(state_dir), "wrong")
        yield _ports(running(state_dir))
    yield _memory()
    if checked is not None:
        yield checked


def _attempt(
    what: str, look: Callable[[], str], otherwise: Literal["missing", "wrong"] = "missing"
) -> Finding:
    try:
        return Finding(what, "ok", look())
    except ReefError as error:
        return Finding(what, otherwise, "not usable", str(error))


def _state_dir(state_dir: Path) -> str:
    there = check_state_dir(state_dir)
    return (
        f"{state_dir} can be written"
        if there == state_dir.absolute()
        else f"{state_dir} will be made"
    )


def _disk(state_dir: Path) -> str:
    there = check_state_dir(state_dir)
    check_disk(there)
    return f"{shutil.disk_usage(there).free / 1024**3:.0f} GB free at {there}"


def _memory() -> Finding:
    available = psutil.virtual_memory().available
    enough = available >= _MEMORY_NEEDED
    advice = (
        "" if enough else "the 135M model wants about 4 GB: close something, or use `model: tiny`"
    )
    return Finding(
        "memory", "ok" if enough else "warning", f"{available / 1024**3:.1f} GB available", advice
    )


def _ports(state: StackState | None) -> Finding:
    if state is not None:
        return Finding(
            "ports", "ok", f"a stack runs here (pid {state.pid}): {state.urls.get('gateway', '')}"
        )
    taken = {
        port: ports.holder_of(port) or "someone"
        for port in ports.DEFAULTS.values()
        if not ports.is_free(port)
    }
    if not taken:
        return Finding("ports", "ok", "8900 to 8915 are free")
    held = ", ".join(f"{port} by {holder}" for port, holder in taken.items())
    return Finding(
        "ports",
        "warning",
        f"taken: {held}",
        "free ports are used instead; `reef status` shows which",
    )


def _config(path: Path | None, named: Path | None) -> tuple[Finding | None, Path]:
    """What is wrong with the file, where there is one, and the state directory that would be used."""
    if path is None:
        return None, named or DEFAULT_STATE_DIR
    sys.path.insert(0, str(Path.cwd()))  # recipes of one's own lie beside where one works
    state_dir = named or DEFAULT_STATE_DIR
    try:
        parsed = read_config(path)
        state_dir = named or parsed.state_dir
        check_config(parsed)
    except ReefError as error:
        advice = str(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
        return Finding(str(path), "wrong", "cannot be used", advice), state_dir
    learns = ", ".join(f"{binding.recipe} on {binding.scenario}" for binding in parsed.reef)
    return Finding(str(path), "ok", f"model {parsed.model.name}, {learns}"), state_dir
