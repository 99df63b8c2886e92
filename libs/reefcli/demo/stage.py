"""The running stack as a demonstration sees it, and the crowd of its users."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from reefcli.demo.figures import Figures
from reefcli.demo.view import View
from reefcommon.demonstration import Answer, Arm, Demonstration, Task, as_messages
from reefcommon.statistics import independent_seed

SHOWN_ANSWERS = 3
ASKED_TIMES, PAUSE_S = 3, 5.0  # of a held-out question on a busy machine


@dataclass(slots=True)
class LiveStage:
    """See `reefcommon.demonstration.Stage`."""

    demonstration: Demonstration
    gateway_url: str
    figures: Figures
    seed: int
    arm: Arm
    view: View
    state_dir: Path
    experience_consumed: asyncio.Event = field(default_factory=asyncio.Event)
    _model: openai.AsyncOpenAI | None = None
    _http: httpx.AsyncClient | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        # No proxy of the shell: the gateway is on this machine.
        asks = openai.DefaultAsyncHttpxClient(timeout=120, trust_env=False)
        url, key = f"{self.gateway_url}/v1", "not-needed"
        # No retries: a retry would hide a failed request.
        self._model = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=asks)
        http = httpx.AsyncClient(base_url=self.gateway_url, timeout=60, trust_env=False)
        async with self._model, http as self._http:
            yield

    @property
    def model(self) -> openai.AsyncOpenAI:
        assert self._model is not None, "the stage is used inside of connected()"
        return self._model

    async def ask(
        self, task: Task, *, max_tokens: int, seed: int, headers: Mapping[str, str] | None = None
    ) -> Answer:
        answer = await self.model.chat.completions.with_raw_response.create(
            model="reef",
            messages=as_messages(task),  # type: ignore[arg-type]  # plain dictionaries
            max_tokens=max_tokens,
            temperature=1.0,
            seed=seed,
            extra_headers=headers,
        )
        text = answer.parse().choices[0].message.content or ""
        given = answer.headers
        release = given.get("x-reef-release-id", "")
        return Answer(text, given["x-reef-agent-record-id"], release)

    async def report(
        self,
        receipt: str,
        score: float,
        metadata: Mapping[str, Any] | None = None,
        feedback: str | None = None,
    ) -> None:
        assert self._http is not None, "the stage is used inside of connected()"
        body = {"score": score, "references": [receipt], "metadata": dict(metadata or {})}
        body |= {} if feedback is None else {"feedback": feedback}
        (await self._http.post("/reef/report", json=body)).raise_for_status()

    def experienced(self, release_id: str, reward: float | None = None) -> None:
        self.figures.experienced += 1
        if reward is not None:
            self.figures.rewards.append(reward)
        answered = self.figures.answered_by
        answered[release_id] = answered.get(release_id, 0) + 1

    async def sampled(
        self, release_id: str, task: Task, *, max_tokens: int, n: int, seed: int
    ) -> list[str]:
        # The choices of a request share its prompt, which the engine reads once. Not recorded: a
        # held-out answer must never become a training sample.
        for times in range(1, ASKED_TIMES + 1):
            try:
                answer = await self.model.chat.completions.create(
                    model="reef",
                    messages=as_messages(task),  # type: ignore[arg-type]
                    max_tokens=max_tokens,
                    temperature=1.0,
                    seed=seed,
                    n=n,
                    extra_headers={"x-reef-capture": "false", "x-reef-release-id": release_id},
                )
                break
            except (openai.APIConnectionError, openai.InternalServerError) as error:
                if times == ASKED_TIMES:
                    raise
                self.say(f"a held-out question has no answer ({error}); asking again")
                await asyncio.sleep(PAUSE_S)
        return [choice.message.content or "" for choice in answer.choices]

    def say(self, text: str) -> None:
        self.view.say(text)

    async def shown(self, release_id: str) -> list[str]:
        """Ask a release the first test question, for a person to read; not measured."""
        if not self.demonstration.test_tasks:
            return []
        # The same seed before and after: the difference is the weights, not the draw.
        seed, task = independent_seed("shown", self.seed), self.demonstration.test_tasks[0]
        tokens = self.demonstration.shown_tokens
        return await self.sampled(release_id, task, max_tokens=tokens, n=SHOWN_ANSWERS, seed=seed)

    async def crowd(self) -> None:
        """Let the users in. They pause while more than two batches of experience wait."""
        async with asyncio.TaskGroup() as crowd:
            for number in range(self.demonstration.users):
                rng = random.Random(independent_seed("user", self.seed, number))
                crowd.create_task(self._user(rng))
            await asyncio.Event().wait()  # without users, too

    async def _user(self, rng: random.Random) -> None:
        while True:
            while self.figures.waiting > 2 * self.demonstration.batch:
                self.experience_consumed.clear()
                await self.experience_consumed.wait()
            try:
                await self.demonstration.visit(self, rng)
            except (openai.OpenAIError, httpx.HTTPError) as error:
                self.figures.failures.append(f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(1)
