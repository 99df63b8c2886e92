"""The port of an agent: a tree and a place become the files of a program that people install."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import ClassVar

from reefcommon.errors import BadConfig
from reefcommon.harness.admission import Adapter
from reefcommon.harness.trajectory import Trajectory
from reefcommon.harness.tree import NAME_PATTERN, Tree

HOME, ROOT = "{home}", "{root}"
"""In `environment` and `arguments`: the folder of the agent's files, the installation's root."""


@dataclass(frozen=True, slots=True)
class Package:
    """A version of the agent in the npm registry.

    `node`: the least version of Node that runs it; empty if the program needs no Node.
    """

    name: str
    version: str
    # the script, or the program, below the package's folder
    program: str
    node: str


@dataclass(frozen=True, slots=True)
class Place:
    """The gateway that an installation talks to. `url` has no `/v1`. No tree holds any of it.

    `context_tokens`: prompt and completion together.
    """

    url: str
    scenario: str
    model: str
    context_tokens: int = 32_768


class Agent(ABC):
    """An agent. Its functions are pure."""

    adapter: ClassVar[Adapter]
    about: ClassVar[str]
    packages: ClassVar[tuple[Package, ...]]
    """The best first."""

    @property
    def name(self) -> str:
        return self.adapter.name

    @abstractmethod
    def tree_files(self, tree: Tree) -> dict[str, bytes]:
        """Return the files of a checked tree, by path below the agent's folder."""

    @abstractmethod
    def own_files(self, tree: Tree, place: Place) -> dict[str, bytes]:
        """Return Reef's own files: the binding, and settings merged with the tree's."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return the variables that the agent is started with."""

    @abstractmethod
    def headless(self, task: str) -> Sequence[str]:
        """Return the arguments for a run without a terminal, which prints its events."""

    # before the arguments of a user, or of `headless`
    arguments: ClassVar[tuple[str, ...]] = ()

    # its own logs below HOME, if they hold the ids of its answers; else it writes REEF_RECEIPTS
    logs: ClassVar[str] = ""

    # by file: keys of its JSON that the agent writes by itself, so that they are no change
    shared: ClassVar[Mapping[str, frozenset[str]]] = {}

    # arguments of a user's start that mean a run without a terminal
    headless_flags: ClassVar[frozenset[str]] = frozenset()
    # pattern of its session logs below its folder; empty: what it prints is its log
    session_logs: ClassVar[str] = ""

    def trajectory(self, log: str, printed: str) -> Trajectory:
        """Return a headless run, from its session log and the last part of what it printed.

        An agent without it cannot work on the tasks of an evaluation.
        """
        # `failure` is set if the model or the agent failed, whatever the exit code says.
        raise NotImplementedError

    def files(self, tree: Tree, place: Place) -> dict[str, bytes]:
        """Return every file of an installation. Raises ValueError if two are the same."""
        ours, own = self.tree_files(tree), self.own_files(tree, place)
        if ours.keys() & own.keys():
            raise ValueError(f"{self.name} writes {sorted(ours.keys() & own.keys())} twice")
        return ours | own


def _is_there(dotted: str) -> bool:
    try:
        return find_spec(f"{dotted}.agent") is not None
    except ModuleNotFoundError:  # of a part of the name
        return False


def runs_episodes(agent: Agent) -> bool:
    return type(agent).trajectory is not Agent.trajectory


def find_agent(name: str) -> Agent:
    """Return the agent of a folder of `libs/reefagents`, or of a package. Raises BadConfig."""
    dotted = name if "." in name else f"reefagents.{name.replace('-', '_')}"
    formed = all(NAME_PATTERN.fullmatch(part) for part in dotted.split("."))
    if not formed or not _is_there(dotted):
        raise BadConfig(f"there is no agent {name[:80]!r}: `GET /reef/harness/adapters` lists them")
    agent = getattr(import_module(f"{dotted}.agent"), "AGENT", None)
    if not isinstance(agent, Agent):
        raise BadConfig(
            f"{dotted}.agent has no AGENT, an instance of reefcommon.harness.agent.Agent"
        )
    return agent
