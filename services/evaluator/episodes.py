"""Both sides answer the same tasks, or score the same held-out samples."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import Protocol, TypeVar

from prometheus_client import Counter

from reefcommon.config_sections import EvaluationSection
from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.evaluator import Task
from reefcommon.events import AgentRun, TaskResult
from reefcommon.harness.delivery import episode_messages
from reefcommon.harness.tree import Tree
from reefcommon.serving import ServingNode
from reefcommon.statistics import independent_seed
from reefkit.limited import limited
from reefkit.retry import GaveUp, RetryPolicy, retried
from reefkit.verifier import Verifier, VerifierFailed
from services.evaluator.domain.replay import HeldOut, advantages, mean_logprob, scored_pairs

T = TypeVar("T")

EPISODES = Counter("reef_evaluation_episodes_total", "episodes of evaluations", ["outcome"])

BACKGROUND = 10
"""The `priority` of every request of the evaluator. Users have 0 and are served first."""


class Scores(Protocol):
    """Mean log-probabilities by weights and sample, computed once. Raises Unavailable."""

    async def scores(self, scenario: str, weights: str) -> dict[str, float]:
        """Return the known scores of these weights by sample id."""

    async def put_score(
        self, scenario: str, weights: str, sample_id: str, score: float
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Side:
    """A side of the comparison: a served model under a harness."""

    model: str
    tree: Tree = ()
    # The name of the weights for good; `model` only names them on a node.
    weights: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The pairs of a trial. `failures`: reasons of episodes that could not be run; `node_lost`:
    the node did not answer afterwards.
    """

    tasks: tuple[TaskResult, ...]
    failures: tuple[str, ...] = ()
    node_lost: bool = False


@dataclass(frozen=True, slots=True)
class Episode:
    """A side's work on a task: its mean score, or the `failure`; the first answer, its words."""

    score: float | None
    answer: str = ""
    failure: str = ""
    words: str = ""
    run: AgentRun | None = None


def task_result(task: str, ours: Episode, heads: Episode) -> TaskResult:
    return TaskResult(
        task=task,
        candidate=ours.score,
        head=heads.score,
        candidate_answer=ours.answer,
        head_answer=heads.answer,
        candidate_words=ours.words,
        head_words=heads.words,
        candidate_run=ours.run,
        head_run=heads.run,
    )


@dataclass(frozen=True, slots=True)
class Episodes:
    """Runs at most `pairs_at_once` tasks, or `scores_at_once` samples, at a time."""

    pairs_at_once: int
    scores_at_once: int
    retry: RetryPolicy
    within_s: float

    async def compare(
        self,
        node: ServingNode,
        sides: tuple[Side, Side],
        tasks: Sequence[Task],
        verifier: Verifier,
        sampling: EvaluationSection,
        candidate_id: str,
    ) -> Evidence:
        """Let both sides answer the same tasks. A score is the mean over the samples."""

        async def pair(task: Task) -> tuple[TaskResult, list[str]]:
            seed = seed_of(candidate_id, task.name)
            run = partial(self._episode, node, task, verifier, sampling, seed)
            ours, heads = await asyncio.gather(*(run(side) for side in sides))
            result = task_result(task.name, ours, heads)
            return result, [episode.failure for episode in (ours, heads) if episode.failure]

        pairs = await limited(self.pairs_at_once, [partial(pair, task) for task in tasks])
        failures = tuple(failure for _, failures in pairs for failure in failures)
        lost = bool(failures) and await is_lost(node)
        return Evidence(tuple(result for result, _ in pairs), failures, lost)

    async def replay(
        self,
        node: ServingNode,
        sides: tuple[Side, Side],
        samples: Sequence[HeldOut],
        scores: Scores,
        scenario: str,
    ) -> Evidence:
        """Compare both sides by the likelihood of held-out answers."""
        # Each score is kept at once: neither an interrupted trial nor the next repeats it.
        failures: list[str] = []

        async def score(side: Side, sample: HeldOut) -> None:
            tokens = list(sample.tokens)
            ask = partial(node.prompt_logprobs, side.model, tokens, priority=BACKGROUND)
            try:
                mean = mean_logprob(sample, await self._retried(ask))
            except GaveUp as error:
                failures.append(f"{sample.sample_id}: {side.model}: {error}")
                return
            await scores.put_score(scenario, side.weights, sample.sample_id, mean)

        informative = [sample for sample, _ in advantages(samples)]
        known = [await scores.scores(scenario, side.weights) for side in sides]
        missing = [
            partial(score, side, sample)
            for sample in informative
            for side, have in zip(sides, known, strict=True)
            if sample.sample_id not in have
        ]
        await limited(self.scores_at_once, missing)
        ours, heads = [await scores.scores(scenario, side.weights) for side in sides]
        lost = bool(failures) and await is_lost(node)
        return Evidence(scored_pairs(samples, ours, heads), tuple(failures), lost)

    async def _episode(
        self,
        node: ServingNode,
        task: Task,
        verifier: Verifier,
        sampling: EvaluationSection,
        seed: int,
        side: Side,
    ) -> Episode:
        count = sampling.samples_per_task
        messages = episode_messages(side.tree, task.messages, rules_at=sampling.rules_at)
        limits = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
        params = {**limits, "seed": seed, "priority": BACKGROUND}

        async def sample() -> list[str]:
            answers = await node.chat(
                side.model, messages, n=count, timeout_s=self.within_s, **params
            )
            if len(answers) != count or any(answer.model != side.model for answer in answers):
                models = sorted({answer.model for answer in answers}) or "no model"
                raise Transient(f"{node.url} gave {len(answers)} answers of {models}")
            return [answer.text for answer in answers]

        texts: list[str] = []
        try:
            texts = await self._retried(sample)
            scored = await verifier.scores(task, texts)
        except (GaveUp, VerifierFailed) as error:
            EPISODES.labels("failed").inc(count)
            failure = f"{task.name}: {side.model}: {error}"
            return Episode(None, texts[0] if texts else "", failure)
        EPISODES.labels("scored").inc(count)
        mean = fsum(item.number for item in scored) / count
        return Episode(mean, texts[0], words=scored[0].words)

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        # A refusal is retried too: within a trial it is the node that fails, not the candidate.
        failures = (Transient, Poison)
        return await retried(call, self.retry, failures, name="episode", within_s=self.within_s)


async def is_lost(node: ServingNode) -> bool:
    """Return whether a node does not answer."""
    try:
        await node.models()
    except Unavailable:
        return True
    return False


def seed_of(candidate_id: str, task: str) -> int:
    """Return the seed with which both sides of a pair sample."""
    # It is new for every candidate, and the same if the candidate is evaluated again.
    # The node draws the choices of one request from independent streams.
    return independent_seed("evaluation", candidate_id, task)
