"""Episodes on one node: both sides of a pair on the same task with the same seed, at the same time, tried again where they fail."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import Any, TypeVar

import structlog
from prometheus_client import Counter

from reefcommon.errors import Poison, Transient
from reefcommon.events import TaskResult
from reefcommon.harness.tree import Tree, episode_messages
from reefcommon.serving import ServingNode
from services.evaluator.domain.replay import HeldOut, mean_logprob, pair
from services.evaluator.domain.tasks import Task, as_score, seed_of
from services.evaluator.plans import Verifier

log = structlog.get_logger()

EPISODES = Counter(
    "reef_evaluation_episodes_total", "episodes of evaluations, by what became of them", ["outcome"]
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared: a served model under a harness."""

    model: str
    tree: Tree = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are sampled."""

    samples_per_task: int
    max_tokens: int
    temperature: float


class Failed(Exception):
    """An episode failed as often as it may. There is no score for it: least of all 0."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the episodes gave. `failures` holds the reasons of those that could not be run."""

    tasks: tuple[TaskResult, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Episodes:
    """Runs pairs, some at a time."""

    pairs_at_once: int
    attempts: int
    first_delay_s: float
    within_s: float

    async def compare(
        self,
        node: ServingNode,
        sides: tuple[Side, Side],
        tasks: Sequence[Task],
        verifier: Verifier,
        sampling: Sampling,
        candidate_id: str,
    ) -> Evidence:
        """Candidate and head on the same tasks. A side's score is the mean over its samples."""

        async def one(task: Task) -> tuple[TaskResult, list[str]]:
            seed = seed_of(candidate_id, task.name)
            scores = await asyncio.gather(
                *(self._episode(node, side, task, verifier, sampling, seed) for side in sides)
            )
            (ours, our_answer, our_failure), (heads, head_answer, head_failure) = scores
            result = TaskResult(
                task=task.name,
                candidate=ours,
                head=heads,
                candidate_answer=our_answer,
                head_answer=head_answer,
            )
            return result, [failure for failure in (our_failure, head_failure) if failure]

        return await self._gather([partial(one, task) for task in tasks])

    async def replay(
        self, node: ServingNode, models: tuple[str, str], samples: Sequence[tuple[HeldOut, float]]
    ) -> Evidence:
        """Candidate's and head's likelihood of held-out answers, each with its advantage."""

        async def one(sample: HeldOut, advantage: float) -> tuple[TaskResult, list[str]]:
            try:
                ours, heads = await asyncio.gather(
                    *(
                        self._tried(partial(node.prompt_logprobs, model, list(sample.tokens)))
                        for model in models
                    )
                )
            except Failed as error:
                return TaskResult(task=sample.sample_id), [f"{sample.sample_id}: {error}"]
            return pair(
                sample, advantage, mean_logprob(sample, ours), mean_logprob(sample, heads)
            ), []

        return await self._gather([partial(one, *item) for item in samples])

    async def _gather(
        self, jobs: Sequence[Callable[[], Awaitable[tuple[TaskResult, list[str]]]]]
    ) -> Evidence:
        room = asyncio.Semaphore(self.pairs_at_once)

        async def limited(
            job: Callable[[], Awaitable[tuple[TaskResult, list[str]]]],
        ) -> tuple[TaskResult, list[str]]:
            async with room:
                return await job()

        found = await asyncio.gather(*(limited(job) for job in jobs))
        return Evidence(
            tuple(result for result, _ in found),
            tuple(failure for _, failures in found for failure in failures),
        )

    async def _episode(
        self,
        node: ServingNode,
        side: Side,
        task: Task,
        verifier: Verifier,
        sampling: Sampling,
        seed: int,
    ) -> tuple[float | None, str, str]:
        """(mean score, first answer, why there is no score)."""
        messages = episode_messages(side.tree, task.messages)

        async def sample() -> list[str]:
            answers = await node.chat(
                side.model,
                messages,
                n=sampling.samples_per_task,
                timeout_s=self.within_s,
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                seed=seed,
            )
            if len(answers) != sampling.samples_per_task or any(
                answer.model != side.model for answer in answers
            ):
                raise Transient(
                    f"{node.url} gave {len(answers)} answers of {answers[0].model if answers else 'no model'}"
                )
            return [answer.text for answer in answers]

        texts: list[str] = []
        try:
            texts = await self._tried(sample)
            scores = await asyncio.to_thread(_verify, verifier, task, texts)
        except Failed as error:
            EPISODES.labels("failed").inc(sampling.samples_per_task)
            return None, texts[0] if texts else "", f"{task.name}: {side.model}: {error}"
        EPISODES.labels("scored").inc(sampling.samples_per_task)
        return fsum(scores) / len(scores), texts[0], ""

    async def _tried(self, episode: Callable[[], Awaitable[T]]) -> T:
        """The result, or Failed after as many tries as there may be."""
        delay_s = self.first_delay_s
        for attempt in range(1, self.attempts + 1):
            try:
                async with asyncio.timeout(self.within_s):
                    return await episode()
            except (Transient, Poison, TimeoutError) as error:
                reason = str(error) or f"no answer within {self.within_s:g} s"
                log.warning("episode_failed", attempt=attempt, reason=reason)
                if attempt == self.attempts:
                    raise Failed(f"{reason} (tried {attempt} times)") from error
            EPISODES.labels("retried").inc()
            await asyncio.sleep(delay_s)
            delay_s *= 2
        raise Failed("no try was allowed")


def _verify(verifier: Verifier, task: Task, texts: Sequence[str]) -> list[float]:
    given: Any = dict(task.given) if isinstance(task.given, Mapping) else task.given
    try:
        return [as_score(verifier(given, text)) for text in texts]
    except Exception as error:  # the verifier is the user's code; a failure of it is never a score
        raise Failed(f"the verifier failed: {type(error).__name__}: {error}") from error
