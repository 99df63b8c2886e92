"""Simulated users: they ask through the OpenAI client, judge the answer, and report the reward on the receipt."""

import asyncio
import random
from dataclasses import dataclass, field
from statistics import fmean

import httpx
import openai

from reefcli.demo.presets import Preset, as_messages
from reefcli.demo.progress import Progress


@dataclass(slots=True)
class Users:
    """A crowd of `preset.users` people. They ask at their own pace, and wait while far more experience lies there than a step takes."""

    preset: Preset
    gateway_url: str
    progress: Progress
    seed: int
    something_consumed: asyncio.Event = field(default_factory=asyncio.Event)

    def client(self) -> openai.AsyncOpenAI:
        """The ordinary client, pointed at Reef: a base URL and nothing else."""
        return openai.AsyncOpenAI(
            base_url=f"{self.gateway_url}/v1", api_key="not-needed", max_retries=0, timeout=120
        )

    async def live(self) -> None:
        """All users ask for ever. Cancel it to send them home."""
        async with (
            self.client() as client,
            httpx.AsyncClient(base_url=self.gateway_url, timeout=60) as http,
            asyncio.TaskGroup() as crowd,
        ):
            for number in range(self.preset.users):
                crowd.create_task(self._one(client, http, random.Random(self.seed * 1000 + number)))

    async def _one(
        self, client: openai.AsyncOpenAI, http: httpx.AsyncClient, rng: random.Random
    ) -> None:
        tasks = list(self.preset.training_tasks)
        while True:
            while len(self.progress.rewards) - self.progress.consumed > 2 * self.preset.batch:
                self.something_consumed.clear()
                await self.something_consumed.wait()
            try:
                await self._ask(client, http, rng, tasks)
            except (openai.OpenAIError, httpx.HTTPError) as error:
                self.progress.failures.append(f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(1)

    async def _ask(
        self,
        client: openai.AsyncOpenAI,
        http: httpx.AsyncClient,
        rng: random.Random,
        tasks: list[object],
    ) -> None:
        task = rng.choice(tasks)
        answer = await client.chat.completions.with_raw_response.create(
            model="reef",
            messages=as_messages(task),  # type: ignore[arg-type]
            max_tokens=self.preset.max_tokens,
            temperature=1.0,
            seed=rng.randrange(2**31),
        )
        receipt = answer.headers["x-reef-agent-record-id"]
        release = answer.headers.get("x-reef-release-id", "")
        reward = self.preset.score(task, answer.parse().choices[0].message.content or "")
        report = await http.post("/reef/report", json={"score": reward, "references": [receipt]})
        report.raise_for_status()
        self.progress.rewards.append(reward)
        self.progress.served_by[release] = self.progress.served_by.get(release, 0) + 1

    async def heldout_reward(self, *, samples: int | None = None) -> float:
        """Mean reward of the model that serves now, on tasks that nobody trains on. Not recorded."""
        tasks = list(self.preset.heldout_tasks)
        async with self.client() as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="reef",
                        messages=as_messages(task),  # type: ignore[arg-type]
                        max_tokens=self.preset.max_tokens,
                        temperature=1.0,
                        n=samples or self.preset.heldout_samples,
                        seed=1_000_003 + number,
                        extra_headers={"x-reef-capture": "false"},
                    )
                    for number, task in enumerate(tasks)
                )
            )
        scores = [
            self.preset.score(task, choice.message.content or "")
            for task, answer in zip(tasks, answers, strict=True)
            for choice in answer.choices
        ]
        return fmean(scores)
