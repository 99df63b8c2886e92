"""Both sides work on the same tasks as an agent, each run in a fresh home, in turns."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum

from reefcommon.config_sections import SERVED, ModelEndpoint
from reefcommon.errors import Poison, Transient
from reefcommon.evaluator import Task
from reefcommon.events import AgentRun, CandidateProposed, Release
from reefcommon.harness.admission import Adapter
from reefcommon.harness.trajectory import AgentOutcome, told
from reefcommon.kinds import KINDS
from reefcommon.serving import ServingNode
from reefcommon.settings import SystemSettings
from reefkit.episodes.folder import sweep
from reefkit.episodes.process import BrokenAgent
from reefkit.episodes.relay import Upstream
from reefkit.episodes.runner import AgentRunner, Seat
from reefkit.limited import limited
from reefkit.recipes.endpoint import key_of
from reefkit.retry import GaveUp, RetryPolicy, retried
from reefkit.verifier import Verifier, VerifierFailed
from services.evaluator.episodes import (
    BACKGROUND,
    EPISODES,
    Episode,
    Evidence,
    Side,
    is_lost,
    task_result,
)
from services.evaluator.plans import Plans

MAX_ANSWER_CHARS = 2000


@dataclass(frozen=True, slots=True)
class AgentEpisodes:
    """Runs the agent of `evaluation.agent`. `gateway`: with the headers of its token."""

    runner: AgentRunner
    gateway: Upstream
    model: str
    engine_key: str
    retry: RetryPolicy

    @property
    def adapter(self) -> Adapter:
        return self.runner.agent.adapter

    async def compare(
        self,
        node: ServingNode,
        sides: tuple[Side, Side],
        tasks: Sequence[Task],
        verifier: Verifier,
        candidate: CandidateProposed,
        head: Release,
    ) -> Evidence:
        """Let both sides work on the same tasks. A score is the mean over the runs.

        Raises:
            Unavailable: no episode can be run now.
        """
        await self.runner.ready()
        section = self.runner.section
        context_tokens = await node.context_tokens()
        order = [
            (number, side)
            for again in range(section.repeats)
            for number in range(len(tasks))
            # The sides take turns to be the first: a machine may get slower meanwhile.
            for side in ((0, 1) if (number + again) % 2 == 0 else (1, 0))
        ]
        jobs = [
            partial(
                self._run,
                tasks[number],
                sides[side],
                self._seat(node, sides[side], candidate, head, context_tokens),
                verifier,
            )
            for number, side in order
        ]
        runs = await limited(section.at_once, jobs)
        by_task: list[tuple[list[Episode], list[Episode]]] = [([], []) for _ in tasks]
        for (number, side), run in zip(order, runs, strict=True):
            by_task[number][side].append(run)
        results = tuple(
            task_result(task.name, *map(_together, both))
            for task, both in zip(tasks, by_task, strict=True)
        )
        failures = tuple(run.failure for run in runs if run.failure)
        return Evidence(results, failures, bool(failures) and await is_lost(node))

    def _seat(
        self,
        node: ServingNode,
        side: Side,
        candidate: CandidateProposed,
        head: Release,
        context_tokens: int | None,
    ) -> Seat:
        # A candidate of weights is only on the node; a harness is in the agent's own files.
        upstream = Upstream(node.url, _bearer(self.engine_key), side.model, BACKGROUND)
        if KINDS[candidate.kind].tried == "harness":
            # No record: so it is no experience, and no session of a user.
            own = {
                "x-reef-scenario": candidate.scenario,
                "x-reef-release-id": head.release_id,
                "x-reef-capture": "false",
                "x-reef-harness": "false",
                "x-reef-tag-episode": candidate.event_id,
            }
            headers = {**self.gateway.headers, **own}
            upstream = replace(self.gateway, headers=headers, priority=BACKGROUND)
        seat = Seat(upstream, candidate.scenario, self.model)
        return replace(seat, context_tokens=context_tokens) if context_tokens else seat

    async def _run(self, task: Task, side: Side, seat: Seat, verifier: Verifier) -> Episode:
        async def run() -> AgentOutcome:
            try:
                return await self.runner.run(task, side.tree, seat)
            except BrokenAgent as error:
                raise GaveUp(str(error)) from error

        try:
            failures = (Transient, Poison)
            outcome = await retried(run, self.retry, failures, name="episode")
        except GaveUp as error:
            EPISODES.labels("failed").inc()
            return Episode(None, failure=f"{task.name}: {self.adapter.name}: {error}")
        worked = Episode(None, outcome.text[:MAX_ANSWER_CHARS], run=_seen(outcome))
        try:
            (scored,) = await verifier.scores(task, [outcome])
        except VerifierFailed as error:
            EPISODES.labels("failed").inc()
            return replace(worked, failure=f"{task.name}: {error}")
        EPISODES.labels("scored").inc()
        return replace(worked, score=scored.number, words=scored.words)


def agent_episodes(
    plans: Plans, system: SystemSettings, retry: RetryPolicy
) -> AgentEpisodes | None:
    """Build the runner of `evaluation.agent`, if a plan needs it, and remove what a killed process
    has left. Raises BadConfig if a key cannot be read.
    """
    if not plans.agents:
        return None
    config, state = plans.config, system.state_dir
    section = config.evaluation.agent
    runner = AgentRunner(section, state / "episodes", state / "agents")
    sweep(runner.home)
    entry = config.models.get(SERVED, ModelEndpoint())
    if section.key_file is not None:
        entry = ModelEndpoint(key_file=section.key_file)
    gateway = Upstream(system.gateway_url, _bearer(key_of(SERVED, entry)))
    return AgentEpisodes(runner, gateway, system.model_name, system.engine_api_key, retry)


def _together(runs: Sequence[Episode]) -> Episode:
    """Return the first of a side's runs on a task, with the mean score of all."""
    numbers = [run.score for run in runs if run.score is not None]
    mean = fsum(numbers) / len(numbers) if len(numbers) == len(runs) else None
    return replace(runs[0], score=mean)


def _seen(outcome: AgentOutcome) -> AgentRun:
    whole = repr([(step.role, step.text, step.calls) for step in outcome.steps])
    return AgentRun(
        status=outcome.status,
        exit_code=outcome.exit_code,
        seconds=round(outcome.seconds, 3),
        requests=outcome.requests,
        files=tuple(sorted(outcome.files)),
        digest=hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest(),
        lines=told(outcome.steps),
    )


def _bearer(token: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}
