"""Starts programs in the order of their needs, restarts them, and ends them in reverse."""

# start:  needs are ready --> spawn --> ready --------------> it lives
# again:  at once         --> spawn --> ready, whenever that is --^   |ended, or no sign of life
#            ^-- a pause, after the second quick death in a row <-----'

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reefcommon.errors import ReefError
from reefstack import ports
from reefstack.errors import CannotStart, PortTaken, StackFailed
from reefstack.logs import log_tail
from reefstack.probes import until_hung, until_ready
from reefstack.process import Child, spawn
from reefstack.restart_policy import RestartPolicy, StackEvent
from reefstack.spec import ProcessSpec

Step = Callable[[], Awaitable[object]]
# The exit codes of a wrong configuration, of our services and in sysexits.h: a restart cannot help.
EXIT_CONFIG = (2, 78)


@dataclass(slots=True)
class _Program:
    spec: ProcessSpec
    child: Child | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ready_at: float = 0.0
    deaths: int = 0
    was_ready: bool = False
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Supervisor:
    """The parent of every program of a stack.

    `holds`: a file in it holds the program of its name. `room`: why none can start, or "".
    """

    stack_id: str
    listener: Callable[[StackEvent], None] = lambda _event: None
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    more_env: Mapping[str, str] | None = None
    holds: Path | None = None
    room: Callable[[], str] = lambda: ""
    _programs: dict[str, _Program] = field(default_factory=dict)
    _steps: dict[str, tuple[str, asyncio.Event]] = field(default_factory=dict)
    _failure: asyncio.Future[ReefError] | None = None

    @property
    def children(self) -> dict[str, Child]:
        """The running programs by name, in the order in which they were asked for."""
        children = {name: program.child for name, program in self._programs.items()}
        return {name: child for name, child in children.items() if child and not child.ended}

    @property
    def ready(self) -> tuple[str, ...]:
        """The programs that answer now."""
        return tuple(name for name, program in self._programs.items() if program.ready.is_set())

    async def start(
        self, specs: Sequence[ProcessSpec], steps: Mapping[str, tuple[str, Step]] | None = None
    ) -> None:
        """Start `specs`, each when its needs are ready. Return when all are ready.

        `steps` are done once: name -> (the program before it or "", the function).

        Raises:
            CannotStart: a program is missing, or not ready in time.
            StackFailed: a program died too often.
        """
        if self._failure is None:
            self._failure = asyncio.get_running_loop().create_future()
        for spec in specs:
            self._programs[spec.name] = _Program(spec)
        steps = steps or {}
        self._steps |= {name: (after, asyncio.Event()) for name, (after, _) in steps.items()}
        works = [self._bring_up(self._programs[spec.name]) for spec in specs]
        works += [self._run_step(name, step) for name, (_, step) in steps.items()]
        jobs = [asyncio.ensure_future(work) for work in works]
        everything = asyncio.gather(*jobs)
        try:
            first: set[asyncio.Future[Any]] = {everything, self._failure}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                raise self._failure.result()
            everything.result()
        finally:
            await cancel([*jobs, everything])

    async def failed(self) -> ReefError:
        """Wait until a program has died for good."""
        assert self._failure is not None, "start() comes first"
        return await asyncio.shield(self._failure)

    async def stop(self) -> None:
        """End every program, dependants first: SIGTERM to its group, its time to end, SIGKILL."""
        programs = self._programs
        await cancel([p.task for p in programs.values() if p.task is not None])
        gone = {name: asyncio.Event() for name in programs}
        await asyncio.gather(*(self._stop_one(program, gone) for program in programs.values()))

    async def kill(self) -> None:
        """End every program at once, without grace."""
        programs = self._programs.values()
        await cancel([p.task for p in programs if p.task is not None])
        await asyncio.gather(*(p.child.stop(0.0) for p in programs if p.child is not None))

    async def _stop_one(self, program: _Program, gone: dict[str, asyncio.Event]) -> None:
        name = program.spec.name
        for other, later in self._programs.items():
            if self._waits_for(later.spec, name):
                await gone[other].wait()
        if program.child is not None:
            self.listener(StackEvent(name, "stopping"))
            await program.child.stop(program.spec.stop_within_s)
            self.listener(StackEvent(name, "stopped"))
        gone[name].set()

    def _waits_for(self, spec: ProcessSpec, name: str) -> bool:
        # it ends before `name` if it needs it, or a step that came after it
        needs = (*spec.depends_on, *spec.ends_before)
        return name in {self._steps[need][0] if need in self._steps else need for need in needs}

    async def _run_step(self, name: str, step: Step) -> None:
        after, done = self._steps[name]
        if after in self._programs:
            await self._programs[after].ready.wait()
        self.listener(StackEvent(name, "starting"))
        await step()
        done.set()
        self.listener(StackEvent(name, "ready"))

    async def _bring_up(self, program: _Program) -> None:
        program.task = asyncio.ensure_future(self._keep(program))
        program.task.add_done_callback(self._note_failure)
        ready = asyncio.ensure_future(program.ready.wait())
        try:
            await asyncio.wait({program.task, ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel([ready])
        if program.task.done():
            program.task.result()

    async def _keep(self, program: _Program) -> None:
        spec = program.spec
        while True:
            for other in spec.restarts_after if program.was_ready else spec.depends_on:
                needed = self._programs.get(other)
                await (needed.ready if needed else self._steps[other][1]).wait()
            await self._while_held(spec)
            self.listener(StackEvent(spec.name, "restarting" if program.was_ready else "starting"))
            await self._await_free_ports(spec)
            env = {**os.environ, **(self.more_env or {})}
            program.child = child = await spawn(spec, env, self.stack_id)
            how = await self._live(program, child)
            await child.stop(0.0)  # its own children must not live on beside its successor
            settled = time.monotonic() - program.ready_at >= self.policy.settled_s
            quick = not (program.ready.is_set() and settled)
            program.ready.clear()
            hopeless = child.process.returncode in EXIT_CONFIG and not _held_ports(spec)
            self._count_death(program, how, quick=quick, hopeless=hopeless)
            await asyncio.sleep(self.policy.delay_s(program.deaths))

    async def _while_held(self, spec: ProcessSpec) -> None:
        hold = self.holds / spec.name if self.holds is not None else None
        told: set[str] = set()
        while True:
            held = hold is not None and hold.exists()
            kind: Literal["waiting", "note"] = "waiting" if held else "note"
            if not (reason := f"held down as long as {hold} is there" if held else self.room()):
                return
            if kind not in told:
                self.listener(StackEvent(spec.name, kind, reason))
                told.add(kind)
            await asyncio.sleep(self.policy.probe_every_s)

    async def _live(self, program: _Program, child: Child) -> str:
        spec = program.spec
        # only the first life must be ready within a time: later, its needs may be away for long
        within_s = math.inf if program.was_ready else spec.ready_within_s
        ready = asyncio.ensure_future(until_ready(child, within_s, self.policy, self.listener))
        ended = asyncio.ensure_future(child.process.wait())
        hung = asyncio.ensure_future(until_hung(spec, program.ready.is_set, self.policy))
        try:
            await asyncio.wait((ready, ended, hung), return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not child.ended:
                if reason := ready.result():
                    await child.stop(2.0)
                    within = f"{spec.name} was not ready within {spec.ready_within_s:.0f} s"
                    raise CannotStart(f"{within}: {reason}\n{log_tail(spec.log)}")
                program.ready_at = time.monotonic()
                program.ready.set()
                program.was_ready = True
                self.listener(StackEvent(spec.name, "ready", spec.url))
                await asyncio.wait((ended, hung), return_when=asyncio.FIRST_COMPLETED)
            hangs = hung.done() and not child.ended
            return hung.result() if hangs else f"exit code {child.process.returncode}"
        finally:
            await cancel((ready, ended, hung))

    async def _await_free_ports(self, spec: ProcessSpec) -> None:
        # Another program on the port would answer the probe in place of ours.
        deadline = time.monotonic() + self.policy.free_port_within_s
        while held := _held_ports(spec):
            if time.monotonic() > deadline:
                raise PortTaken(ports.taken(spec.name, held[0]), held[0])
            await asyncio.sleep(0.1)

    def _count_death(self, program: _Program, how: str, *, quick: bool, hopeless: bool) -> None:
        spec = program.spec
        program.deaths = program.deaths + 1 if quick else 1
        self.listener(StackEvent(spec.name, "died", how))
        if hopeless:
            program.deaths = max(program.deaths, self.policy.quick_deaths)
        if program.deaths < self.policy.quick_deaths:
            return
        often = "" if hopeless else f" {program.deaths} times in a row"
        if spec.vital or not program.was_ready:
            tail = f"Its log, {spec.log}, ends with:\n{log_tail(spec.log)}"
            raise StackFailed(f"{spec.name} ended{often} ({how}). {tail}")
        text = f"ended{often} ({how}): the others go on, it is tried again; see {spec.log}"
        self.listener(StackEvent(spec.name, "note", text))

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is not None and not self._failure.done():
            failure = error if isinstance(error, ReefError) else StackFailed(repr(error))
            self._failure.set_result(failure)


async def cancel(jobs: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)


def _held_ports(spec: ProcessSpec) -> list[int]:
    return [port for port in spec.ports if not ports.is_free(port)]
