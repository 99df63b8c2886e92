"""Simulated users: they ask through the OpenAI client and report a reward."""

import asyncio
import random
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import httpx
import openai

from reefcli.demo.figures import Figures
from reefcli.demo.presets import Preset, Task, as_messages
from reefcommon.statistics import independent_seed, mean_interval

SHOWN_ANSWERS = 3


@dataclass(slots=True)
class Users:
    """`preset.users` people who ask at their own pace.

    They pause while more than two batches of rewarded answers wait for a step. If `permuted`, an
    answer gets the reward of another: rewards say nothing, and nothing else is different.
    """

    preset: Preset
    gateway_url: str
    figures: Figures
    seed: int
    permuted: bool = False
    experience_consumed: asyncio.Event = field(default_factory=asyncio.Event)
    _pool: list[float] = field(default_factory=list)

    def _client(self) -> openai.AsyncOpenAI:
        url = f"{self.gateway_url}/v1"
        # No retries: a retry would hide a failed request.
        return openai.AsyncOpenAI(base_url=url, api_key="not-needed", max_retries=0, timeout=120)

    async def live(self) -> None:
        async with (
            self._client() as client,
            httpx.AsyncClient(base_url=self.gateway_url, timeout=60) as http,
            asyncio.TaskGroup() as crowd,
        ):
            for number in range(self.preset.users):
                rng = random.Random(independent_seed("user", self.seed, number))
                crowd.create_task(self._one(client, http, rng))

    async def _one(
        self, client: openai.AsyncOpenAI, http: httpx.AsyncClient, rng: random.Random
    ) -> None:
        tasks = self.preset.training_tasks
        while True:
            while len(self.figures.rewards) - self.figures.consumed > 2 * self.preset.batch:
                self.experience_consumed.clear()
                await self.experience_consumed.wait()
            try:
                await self._ask(client, http, rng.choice(tasks), rng.randrange(2**31))
            except (openai.OpenAIError, httpx.HTTPError) as error:
                self.figures.failures.append(f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(1)

    async def _ask(
        self, client: openai.AsyncOpenAI, http: httpx.AsyncClient, task: Task, seed: int
    ) -> None:
        answer = await client.chat.completions.with_raw_response.create(
            **self._request(task, self.preset.max_tokens), seed=seed
        )
        receipt = answer.headers["x-reef-agent-record-id"]
        release = answer.headers.get("x-reef-release-id", "")
        reward = self.preset.score(task, answer.parse().choices[0].message.content or "")
        if self.permuted:
            # Each reward is reported once. The first answers fill the pool, without a report.
            self._pool.append(reward)
            if len(self._pool) <= self.preset.batch:
                return
            reward = self._pool.pop(random.Random(seed).randrange(self.preset.batch))
        report = await http.post("/reef/report", json={"score": reward, "references": [receipt]})
        report.raise_for_status()
        self.figures.rewards.append(reward)
        self.figures.answered_by[release] = self.figures.answered_by.get(release, 0) + 1

    async def heldout(
        self, release_id: str, measurement: int, *, samples: int
    ) -> tuple[float, float, float, int]:
        """Measure a release on the test questions: (mean, low, high, number of answers).

        The interval covers the noise of answers and the choice of questions. Each `measurement`
        draws from its own seeds. The requests are pinned to the release and not recorded.

        Raises:
            openai.ConflictError: the release is not served any more.
        """
        tasks = self.preset.test_tasks
        seeds = [independent_seed("heldout", self.seed, measurement, n) for n in range(len(tasks))]
        found = await self._pinned(release_id, tasks, seeds, samples, self.preset.max_tokens)
        means = [
            fmean(self.preset.score(task, text) for text in texts)
            for task, texts in zip(tasks, found, strict=True)
        ]
        return *mean_interval(means), sum(map(len, found))

    async def shown(self, release_id: str) -> list[str]:
        """Ask a release the first test question, for a person to read; not measured."""
        # The same seed before and after: the difference is the weights, not the draw.
        seeds, task = [independent_seed("shown", self.seed)], self.preset.test_tasks[0]
        tokens = self.preset.shown_tokens
        (texts,) = await self._pinned(release_id, [task], seeds, SHOWN_ANSWERS, tokens)
        return texts

    async def _pinned(
        self, release_id: str, tasks: list[Task], seeds: list[int], n: int, max_tokens: int
    ) -> list[list[str]]:
        async def ask(client: openai.AsyncOpenAI, task: Task, seed: int) -> list[str]:
            # The choices of a request share its prompt, which the engine reads once.
            request = {**self._request(task, max_tokens), "n": n, "seed": seed}
            # Not recorded: a held-out answer must never become a training sample.
            headers = {"x-reef-capture": "false", "x-reef-release-id": release_id}
            answer = await client.chat.completions.create(**request, extra_headers=headers)
            return [choice.message.content or "" for choice in answer.choices]

        async with self._client() as client:
            return await asyncio.gather(
                *(ask(client, *pair) for pair in zip(tasks, seeds, strict=True))
            )

    def _request(self, task: Task, max_tokens: int) -> dict[str, Any]:
        sampling = {"max_tokens": max_tokens, "temperature": 1.0}
        return {"model": "reef", "messages": as_messages(task), **sampling}
