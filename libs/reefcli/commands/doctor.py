"""`reef doctor`: the parts that are missing on this machine, and how to get them."""

import importlib.util
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import psutil
import typer

from reefcli.checks import check_config, check_state_dir, read_config
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDirOfFile
from reefcli.output import console, print_json, print_table
from reefcommon.errors import ReefError
from reefkit.recipes.sandbox import Sandbox
from reefstack import ports, seaweedfs, tansu, valkey
from reefstack.disk import check_disk
from reefstack.state import StackState, running

_MODULES = {
    "torch": "make setup (infra/torch.sh takes the CPU build)",
    "transformers": "pip install 'reef-agent[learn]'",
    "peft": "pip install 'reef-agent[learn]'",
    "chdb": "pip install chdb, or name a ClickHouse under `external.clickhouse`",
}
_LFS_ADVICE = "optional: apt-get install git-lfs; without it artifacts go through dulwich"
# Engine and step process hold the weights of the 135M model, and gradients beside them.
_MEMORY_NEEDED = 4 * 1024**3


State = Literal["ok", "warning", "missing", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. `advice`: how to mend it."""

    what: str
    state: State
    detail: str
    advice: str = ""


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A serve.yaml to check as well.")
    ] = None,
    state_dir: StateDirOfFile = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: Python, programs, libraries, ports, disk, memory, a serve.yaml.

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
    """Yield all findings in order. `named`: the state directory, if it is not the file's."""
    checked, state_dir = _config(config, named)
    # Without Python 3.11 this command does not start.
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield _attempt("broker (Tansu)", tansu.binary)
    yield _attempt("object store (SeaweedFS)", seaweedfs.binary)
    yield _attempt("release heads (Valkey)", valkey.binary)
    for module, advice in _MODULES.items():
        there = "installed" if importlib.util.find_spec(module) else None
        yield _found(f"library {module}", there, "missing", advice)
    yield _found("git-lfs", shutil.which("git-lfs"), "warning", _LFS_ADVICE)
    yield _attempt("sandbox for programs", lambda: Sandbox().kind, "warning")
    place = _attempt("state directory", lambda: _state_dir(state_dir), "wrong")
    yield place
    if place.state == "ok":
        yield _attempt("disk", lambda: _disk(state_dir), "wrong")
        yield _ports(running(state_dir))
    yield _memory()
    if checked is not None:
        yield checked


def _found(what: str, detail: str | None, otherwise: State, advice: str) -> Finding:
    lacking = Finding(what, otherwise, "not installed", advice)
    return lacking if detail is None else Finding(what, "ok", detail)


def _attempt(what: str, look: Callable[[], str], otherwise: State = "missing") -> Finding:
    try:
        return Finding(what, "ok", look())
    except ReefError as error:
        return Finding(what, otherwise, "not usable", str(error))


def _state_dir(state_dir: Path) -> str:
    there = check_state_dir(state_dir) == state_dir.absolute()
    return f"{state_dir} {'can be written' if there else 'will be made'}"


def _disk(state_dir: Path) -> str:
    there = check_state_dir(state_dir)
    check_disk(there)
    return f"{shutil.disk_usage(there).free / 1024**3:.0f} GB free at {there}"


def _memory() -> Finding:
    available = psutil.virtual_memory().available
    enough, text = available >= _MEMORY_NEEDED, f"{available / 1024**3:.1f} GB available"
    advice = "the 135M model wants about 4 GB: close something, or use `model: tiny`"
    return Finding("memory", "ok", text) if enough else Finding("memory", "warning", text, advice)


def _ports(state: StackState | None) -> Finding:
    if state is not None:
        text = f"a stack runs here (pid {state.pid}): {state.urls.get('gateway', '')}"
        return Finding("ports", "ok", text)
    taken = [port for port in ports.DEFAULTS.values() if not ports.is_free(port)]
    if not taken:
        return Finding("ports", "ok", "8900 to 8915 are free")
    held = ", ".join(f"{port} by {ports.holder_of(port) or 'another program'}" for port in taken)
    advice = "free ports are used instead; `reef status` shows which"
    return Finding("ports", "warning", f"taken: {held}", advice)


def _config(path: Path | None, named: Path | None) -> tuple[Finding | None, Path]:
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
