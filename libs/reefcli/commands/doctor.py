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

from reefcli.commands.serve import check_model, check_recipes
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir
from reefcli.output import console, print_json, print_table
from reefcli.stack import ports, seaweedfs, tansu, valkey
from reefcli.stack.disk import check_disk
from reefcli.stack.state import running
from reefcommon.config import load
from reefcommon.errors import ReefError

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
    state: Literal["ok", "warning", "missing"]
    detail: str
    advice: str = ""


def doctor(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A serve.yaml to check as well.")] = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
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
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def examine(config: Path | None, state_dir: Path) -> Iterator[Finding]:
    """Everything that is looked at, in order."""
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    yield Finding("python", "ok" if good else "missing", f"{version} at {sys.executable}", "" if good else "install Python 3.11 or newer")
    yield _attempt("broker (Tansu)", tansu.binary)
    yield _attempt("object store (SeaweedFS)", seaweedfs.binary)
    yield _attempt("release heads (Valkey)", valkey.binary)
    for module, advice in _MODULES.items():
        there = importlib.util.find_spec(module) is not None
        yield Finding(f"library {module}", "ok" if there else "missing", "installed" if there else "not installed", "" if there else advice)
    lfs = shutil.which("git-lfs")
    advice = "optional: apt-get install git-lfs; without it artifacts are stored through dulwich"
    yield Finding("git-lfs", "ok" if lfs else "warning", lfs or "not installed", "" if lfs else advice)
    yield _attempt("disk", lambda: _disk(state_dir))
    yield _memory()
    yield from _ports(state_dir)
    if config is not None:
        yield _attempt(str(config), lambda: _config(config))


def _attempt(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, "ok", look())
    except ReefError as error:
        return Finding(what, "missing", "not usable", str(error))


def _disk(state_dir: Path) -> str:
    there = next(path for path in (state_dir.absolute(), *state_dir.absolute().parents) if path.exists())
    check_disk(there)
    return f"{shutil.disk_usage(there).free / 1024**3:.0f} GB free at {there}"


def _memory() -> Finding:
    available = psutil.virtual_memory().available
    enough = available >= _MEMORY_NEEDED
    advice = "" if enough else "the 135M model wants about 4 GB: close something, or use `model: tiny`"
    return Finding("memory", "ok" if enough else "warning", f"{available / 1024**3:.1f} GB available", advice)


def _ports(state_dir: Path) -> Iterator[Finding]:
    state = running(state_dir)
    if state is not None:
        yield Finding("ports", "ok", f"a stack runs here (pid {state.pid}): {state.urls.get('gateway', '')}")
        return
    taken = {port: ports.holder_of(port) or "someone" for port in ports.DEFAULTS.values() if not ports.is_free(port)}
    if not taken:
        yield Finding("ports", "ok", "8900 to 8915 are free")
        return
    held = ", ".join(f"{port} by {holder}" for port, holder in taken.items())
    yield Finding("ports", "warning", f"taken: {held}", "free ports are used instead; `reef status` shows which")


def _config(path: Path) -> str:
    sys.path.insert(0, str(Path.cwd()))
    parsed = load(path)
    check_recipes(parsed)
    check_model(parsed)
    return f"model {parsed.model.name}, " + ", ".join(f"{binding.recipe} on {binding.scenario}" for binding in parsed.reef)
