"""An episode: an agent, rendered with a harness into a fresh home, works on a task."""

#   tree --files--> home --launcher--> agent --relay--> gateway
#                                        '--session log--> trajectory --> AgentOutcome
#
# A bound that the agent met is an outcome, for its verifier. A run that could not be made is an
# error, and never a score: the agent did not start, or the model did not answer it.

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reefcommon.config_agent import AgentSection
from reefcommon.errors import BadConfig, Transient, Unavailable
from reefcommon.evaluator import Task
from reefcommon.harness.agent import HOME, ROOT, Agent, Place
from reefcommon.harness.trajectory import AgentOutcome, text_of
from reefcommon.harness.tree import Tree
from reefkit.episodes import isolation
from reefkit.episodes.folder import Folder
from reefkit.episodes.process import Bounds, BrokenAgent, Ended, finished, launched
from reefkit.episodes.program import Program, agent_of, check_program, program_of
from reefkit.episodes.relay import Relay, Upstream, running

_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
MAX_TEXT_CHARS = 64 * 1024


@dataclass(frozen=True, slots=True)
class Seat:
    """The model that an episode asks: the server, its name in the agent's files, its length."""

    upstream: Upstream
    scenario: str
    model: str
    context_tokens: int = 32_768


@dataclass(slots=True)
class AgentRunner:
    """Runs episodes below `home`. `agents`: the folder of programs from npm."""

    section: AgentSection
    home: Path
    agents: Path
    bounds: Bounds = field(init=False)
    _program: Program | None = None
    _getting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        section = self.section
        self.bounds = Bounds(
            section.timeout_s, memory_mb=section.memory_mb, processes=section.processes
        )

    @property
    def agent(self) -> Agent:
        return agent_of(self.section)

    async def ready(self) -> Program:
        """Return the agent's program, and install it if it is not there.

        Raises:
            Unavailable: the isolation or the program cannot be used now. No episode is run then.
        """
        async with self._getting:
            if self._program is None:
                try:
                    await asyncio.to_thread(check_section, self.section)
                    self._program = await asyncio.to_thread(program_of, self.section, self.agents)
                except BadConfig as error:
                    raise Unavailable(str(error)) from error
            return self._program

    async def run(self, task: Task, tree: Tree, seat: Seat) -> AgentOutcome:
        """Give a task to the agent with a harness.

        Raises:
            Transient: there was no run.
        """
        program = await self.ready()
        folder = await asyncio.to_thread(Folder.make, self.home)
        try:
            return await self._run(program, folder, task, tree, seat)
        except OSError as error:
            raise Transient(f"the episode could not be run: {error}") from error
        finally:
            await finished(asyncio.to_thread(folder.remove))

    async def _run(
        self, program: Program, folder: Folder, task: Task, tree: Tree, seat: Seat
    ) -> AgentOutcome:
        ours, theirs = socket.socketpair()
        control = os.dup(theirs.fileno())
        theirs.close()
        readable = program.readable
        command = isolation.command(self.section.isolation, folder.root, readable, control)
        began = time.monotonic()
        async with launched(command, control, ours, folder.mark) as process:
            relay = Relay(seat.upstream)
            async with running(relay, process.listener):
                port = process.listener.getsockname()[1]
                place = Place(
                    f"http://127.0.0.1:{port}", seat.scenario, seat.model, seat.context_tokens
                )
                await asyncio.to_thread(self._write, folder, task, tree, place)
                # A task's own braces stay: only the agent's words name its folders.
                own = (_filled(word, folder) for word in self.agent.arguments)
                argv = (*program.argv, *own, *self.agent.headless(prompt_of(task)))
                environment = self._environment(folder, program, relay, place)
                ended = await process.run(argv, environment, folder, self.bounds)
        # After the end of all its processes: none changes a file while it is read.
        seconds = time.monotonic() - began
        return await asyncio.to_thread(self._outcome, folder, ended, relay, seconds)

    def _write(self, folder: Folder, task: Task, tree: Tree, place: Place) -> None:
        folder.write(self.agent.files(tree, place), folder.agent_home)
        given = task.given.get("files") if isinstance(task.given, Mapping) else None
        if isinstance(given, Mapping):
            files = {str(name): str(text).encode() for name, text in given.items()}
            folder.write(files, folder.work)

    def _environment(
        self, folder: Folder, program: Program, relay: Relay, place: Place
    ) -> dict[str, str]:
        beside = str(Path(program.argv[0]).parent)
        given = self.agent.environment().items()
        own = {name: _filled(value, folder) for name, value in given}
        return {
            "PATH": ":".join(dict.fromkeys((beside, *_PATH))),
            "HOME": str(folder.home),
            "TMPDIR": str(folder.home),
            "LANG": "C.UTF-8",
            "REEF_EPISODE": folder.mark,
            **own,
            "REEF_TOKEN": relay.secret,
            "REEF_URL": place.url,
            "REEF_SCENARIO": place.scenario,
        }

    def _outcome(self, folder: Folder, ended: Ended, relay: Relay, seconds: float) -> AgentOutcome:
        log = folder.log(self.agent.session_logs)
        try:
            run = self.agent.trajectory(log, ended.printed)
        except Exception as error:  # an agent can write to its own log
            words = f"the agent's log cannot be read: {type(error).__name__}: {error}"
            raise Transient(words[:300]) from error
        if not relay.answered:
            said = ": ".join(filter(None, (run.failure, ended.errors.strip()[-200:])))
            said = said or "it asked no model"
            # It ended by itself, with a status of its own, and asked nothing.
            broken = not relay.refused and not ended.stopped and 0 < (ended.code or 0) < 128
            kind = BrokenAgent if broken else Transient
            raise kind(f"no answer of the model: {relay.refused or said}")
        # An agent may try again until its time is up: then the model's fault would be its score.
        if ended.stopped == "timeout" and relay.away:
            raise Transient(f"the model did not go on answering: {relay.refused}")
        if not ended.stopped and run.failure:
            raise Transient(f"the agent could not go on: {run.failure[:300]}")
        return AgentOutcome(
            ended.stopped or ("failed" if ended.code else "ok"),
            run.answer[:MAX_TEXT_CHARS],
            run.steps,
            folder.texts(),
            ended.code,
            seconds,
            relay.answered,
        )


def check_section(section: AgentSection) -> None:
    """Check that episodes can be run here. Blocks for up to a second. Raises BadConfig."""
    check_program(section)
    isolation.check(section.isolation)
    if section.key_file is not None and not section.key_file.is_file():
        raise BadConfig(f"evaluation.agent.key_file: there is no file {section.key_file}")


def _filled(text: str, folder: Folder) -> str:
    return text.replace(HOME, str(folder.agent_home)).replace(ROOT, str(folder.agent))


def prompt_of(task: Task) -> str:
    """Return the text that the agent gets: all of the task's messages."""
    return "\n\n".join(filter(None, (text_of(message.get("content")) for message in task.messages)))
