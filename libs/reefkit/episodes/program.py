"""The program of an agent: a configured path, or a package of npm, installed once."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from reefcommon.config_agent import AgentSection
from reefcommon.errors import BadConfig, Unavailable
from reefcommon.harness import installation
from reefcommon.harness.agent import Agent, find_agent, runs_episodes

log = structlog.get_logger()

_INSTALL_S = 900.0


@dataclass(frozen=True, slots=True)
class Program:
    """The first words of its command, and the folders that it needs to read."""

    argv: tuple[str, ...]
    readable: tuple[Path, ...]


def agent_of(section: AgentSection) -> Agent:
    """Return the agent that works on tasks. Raises BadConfig."""
    agent = find_agent(section.adapter)
    if not runs_episodes(agent):
        raise BadConfig(f"evaluation.agent.adapter: {agent.name} cannot work on tasks")
    return agent


def check_program(section: AgentSection) -> None:
    """Raises BadConfig if the agent's program cannot be there."""
    agent = agent_of(section)
    if section.binary is not None:
        if not os.access(section.binary, os.X_OK) or not section.binary.is_file():
            raise BadConfig(f"evaluation.agent.binary: {section.binary} is no program")
        return
    if missing := [name for name in ("node", "npm") if shutil.which(name) is None]:
        remedy = "install Node.js 20 or later with npm, or name evaluation.agent.binary"
        raise BadConfig(f"evaluation.agent: {agent.name} needs {' and '.join(missing)}: {remedy}")


def program_of(section: AgentSection, place: Path) -> Program:
    """Return the program. Blocks: the first call may install it below `place`, for a minute.

    Raises:
        BadConfig: the program cannot be there.
        Unavailable: npm could not install it now.
    """
    check_program(section)
    if section.binary is not None:
        program = section.binary.resolve()
        beside = program.parent
        # The folder of a program may hold more of it; a home holds more than that.
        whole = beside not in (Path.home(), Path("/"), Path("/tmp"))  # noqa: S108
        return Program((str(program),), (beside if whole else program,))
    found = _install(agent_of(section), place)
    app, node = place.resolve() / agent_of(section).name / "app", found["node"]
    if not node:  # a program that needs none
        return Program((found["script"],), (app,))
    return Program((node, found["script"]), (app, Path(node).resolve().parent.parent))


def _install(agent: Agent, place: Path) -> dict[str, str]:
    folder = place / agent.name
    folder.mkdir(parents=True, exist_ok=True)
    plan = {"agent": agent.name, "packages": [asdict(one) for one in agent.packages]}
    with _lock(folder / "lock") as held:
        carried = folder / "packages.json"
        carried.write_text(json.dumps(plan))
        try:
            done = subprocess.run(  # noqa: S603 - the program of the installer
                [_node(), str(installation.PROGRAM), "fetch", str(carried)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_INSTALL_S,
                check=False,
                # It holds the lock too: it outlives an evaluator that is killed.
                pass_fds=(held,),
                env={**os.environ, "REEF_AGENTS": str(place.resolve())},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"the agent {agent.name} cannot be installed: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip()[-300:]
        raise Unavailable(f"the agent {agent.name} cannot be installed: {said}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _node() -> str:
    return shutil.which("node") or "node"


@contextmanager
def _lock(path: Path) -> Iterator[int]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()
