"""Simulated users: they ask through the OpenAI client, judge the answer, and report the reward."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from reefcli.demo.figures import Figures
from reefcli.demo.presets import Preset, Task, as_messages
from reefcommon.statistics import independent_seed, mean_interval

SHOWN_ANSWERS = 3


@dataclass(slots=True)
class Users:
    """A crowd of `preset.users` people who ask at their own pace.

    They pause while more than two batches of rewarded answers wait for a training step.
    """

    preset: Preset
    gateway_url: str
    figures: Figures
    seed: int
    experience_consumed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[openai.AsyncOpenAI]:
        async with openai.AsyncOpenAI(
            # No retries: a retry would hide a failed request.
            base_url=f"{self.gateway_url}/v1",
            api_key="not-needed",
            max_retries=0,
            timeout=120,
        ) as client:
            yield client

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
        tasks = list(self.preset.training_tasks)
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
        report = await http.post("/reef/report", json={"score": reward, "references": [receipt]})
        report.raise_for_status()
        self.figures.rewards.append(reward)
        self.figures.answered_by[release] = self.figures.answered_by.get(release, 0) + 1

    async def heldout(
        self, release_id: str, measurement: int, *, samples: int
    ) -> tuple[float, float, float, int]:
        """Measure a release on the held-out tasks: (mean, low, high, number of answers).

        Each `measurement` draws from seeds of its own, so no two share an answer's randomness.
        The requests are pinned to the release and are not recorded.

        Raises:
            openai.ConflictError: the release is not served any more.
        """
        async with self._client() as client:
            found = await asyncio.gather(
                *(
                    self._pinned(client, task, release_id, number, measurement, samples)
                    for number, task in enumerate(self.preset.heldout_tasks)
                )
            )
        scores = [
            self.preset.score(task, text)
            for task, texts in zip(self.preset.heldout_tasks, found, strict=True)
            for text in texts
        ]
        return *mean_interval(scores), len(scores)

    async def _pinned(
        self,
        client: openai.AsyncOpenAI,
        task: Task,
        release_id: str,
        number: int,
        measurement: int,
        samples: int,
    ) -> list[str]:
        answer = await client.chat.completions.create(
            **self._request(task, self.preset.max_tokens),
            # The choices of a request share its prompt, which the engine reads once.
            n=samples,
            seed=independent_seed("heldout", self.seed, measurement, number),
            extra_headers=_unrecorded(release_id),
        )
        return [choice.message.content or "" for choice in answer.choices]

    async def shown(self, release_id: str) -> list[str]:
        """Ask a release the first held-out question, for a person to read; not measured."""
        async with self._client() as client:
            answer = await client.chat.completions.create(
                **self._request(self.preset.heldout_tasks[0], self.preset.shown_tokens),
                # The same seed before and after: the difference is the weights, not the draw.
                n=SHOWN_ANSWERS,
                seed=independent_seed("shown", self.seed),
                extra_headers=_unrecorded(release_id),
            )
        return [choice.message.content or "" for choice in answer.choices]

    def _request(self, task: Task, max_tokens: int) -> dict[str, Any]:
        messages = as_messages(task)
        return {
            "model": "reef",
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 1.0,
        }


def _unrecorded(release_id: str) -> dict[str, str]:
    # Not recorded: a held-out answer must never become a training sample.
    return {"x-reef-capture": "false", "x-reef-release-id": release_id}
