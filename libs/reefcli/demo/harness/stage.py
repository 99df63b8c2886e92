"""The running stack, as the acts see it: reports, proposals, verdicts, releases."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from reefcli.demo.report import busy
from reefcli.errors import CommandFailed
from reefcli.loop_events import LoopEvent, follow
from reefcommon.events import CandidateEvaluated, CandidateProposed, Evaluation, ReleasePublished
from reefcommon.harness.files import TREE_NAME
from reefkit.bodies import FilesystemBodies
from reefstack.embedded import Stack

# A minute on a machine that is free; others may have all but a tenth of it.
_WITHIN_S = 600.0


@dataclass(slots=True)
class Stage:
    """Prints what happens by `say`, and waits for it."""

    stack: Stack
    say: Callable[[str], None]
    status: Callable[[str], None]
    http: httpx.AsyncClient
    events: list[LoopEvent] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.stack.urls["gateway"]

    def client(self, scenario: str) -> openai.AsyncOpenAI:
        """Return a plain OpenAI client of a scenario."""
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key="not-needed",
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
            default_headers={"x-reef-scenario": scenario},
        )

    async def ask(self, client: openai.AsyncOpenAI, text: str) -> tuple[str, str]:
        """Return an answer and its receipt."""
        answer = await client.chat.completions.with_raw_response.create(
            model="reef", messages=[{"role": "user", "content": text}]
        )
        receipt = answer.headers["x-reef-agent-record-id"]
        return answer.parse().choices[0].message.content or "", receipt

    async def report(self, scenario: str, receipt: str, words: str) -> None:
        """Report a bad answer, with words."""
        body = {"score": 0, "feedback": words, "references": [receipt]}
        headers = {"x-reef-scenario": scenario}
        (await self.http.post("/reef/report", json=body, headers=headers)).raise_for_status()

    async def proposal(self, scenario: str, after: int) -> CandidateProposed:
        found: CandidateProposed = await self._first(
            f"a proposal for {scenario}",
            lambda event: isinstance(event, CandidateProposed) and event.scenario == scenario,
            after,
        )
        return found

    async def verdict(self, candidate: CandidateProposed) -> Evaluation:
        def holds(event: LoopEvent) -> bool:
            name = event.candidate.event_id if isinstance(event, CandidateEvaluated) else ""
            return name == candidate.event_id

        event = await self._first("the verdict on both sides' work", holds, 0)
        found: Evaluation = event.evaluation
        return found

    async def release(self, scenario: str, after: int) -> str:
        """Return the release that serves next, once the gateway routes to it."""
        event = await self._first(
            "the release",
            lambda event: (
                isinstance(event, ReleasePublished)
                and event.scenario == scenario
                and event.release.operation == "harness"
            ),
            after,
        )
        name: str = event.release.release_id
        await self._serves(scenario, name)
        return name

    async def tree(self, scenario: str) -> bytes:
        """Return the stored bytes of the tree that serves; none if there is no harness."""
        head = await self._head(scenario)
        if "harness" not in head["contents"]:
            return b""
        place = f"/reef/scenarios/{scenario}/releases/{head['release_id']}/contents/harness"
        answer = await self.http.get(f"{place}/{TREE_NAME}")
        return answer.raise_for_status().content

    async def roll_back(self, scenario: str, release_id: str) -> str:
        body = {"release_id": release_id, "reason": "the demonstration"}
        answer = await self.http.post(f"/reef/scenarios/{scenario}/rollback", json=body)
        name: str = answer.raise_for_status().json()["release_id"]
        await self._serves(scenario, name)
        return name

    async def head(self, scenario: str) -> str:
        return str((await self._head(scenario))["release_id"])

    async def _head(self, scenario: str) -> dict[str, Any]:
        rows = (await self.http.get("/reef/scenarios")).raise_for_status().json()["data"]
        heads = [row["head"] for row in rows if row["scenario"] == scenario and row["head"]]
        return heads[0] if heads else {"release_id": "", "contents": {}}

    async def _serves(self, scenario: str, name: str) -> None:
        # A gateway learns of a release from the log, a moment after it is published.
        async with asyncio.timeout(_WITHIN_S):
            while True:
                if await self.head(scenario) == name:
                    return
                await asyncio.sleep(0.1)

    async def _first(self, name: str, holds: Callable[[LoopEvent], bool], after: int) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < _WITHIN_S:
            for event in self.events[after:]:
                if holds(event):
                    return event
            self.status(f"{name} comes next: {loop.time() - began:.0f} s so far")
            await asyncio.sleep(0.1)
        logs = self.stack.state_dir / "logs"
        raise CommandFailed(f"{name} has not come in {_WITHIN_S:g} s{busy()}; see {logs}")

    async def watch(self) -> None:
        """Keep the loop's events."""
        seen: set[str] = set()
        bodies = FilesystemBodies(self.stack.state_dir / "bodies")
        async for event in follow(self.stack.kafka_bootstrap, bodies):
            if event.event_id not in seen:
                seen.add(event.event_id)
                self.events.append(event)


@asynccontextmanager
async def staged(
    stack: Stack, say: Callable[[str], None], status: Callable[[str], None]
) -> AsyncIterator[Stage]:
    """Yield the stage of a running stack."""
    async with httpx.AsyncClient(
        base_url=stack.urls["gateway"], timeout=60, trust_env=False
    ) as http:
        stage = Stage(stack, say, status, http)
        watching = asyncio.create_task(stage.watch())
        try:
            yield stage
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
