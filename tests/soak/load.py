"""The traffic: many short conversations of people who never come back, reports on half of the
answers, streams, and clients that leave.

Open loop at a given rate. What was acknowledged is remembered, so that it can be looked for
afterwards.
"""

import asyncio
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

COME_AGAIN = 15
RULES = (
    "Please answer in one word.",
    "Do not repeat the question.",
    "Write in lower case only.",
    "Be kind.",
)


@dataclass(slots=True)
class Seen:
    """What clients hold: receipts of exchanges that were answered to the end, and of reports
    that were accepted, by scenario.
    """

    records: dict[str, str] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Load:
    """`rate`: conversations begin so often that about `rate` requests a second are sent."""

    url: str
    rate: float
    rng: random.Random
    seen: Seen
    stopping: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _clients: int = 0

    async def run(self) -> None:
        """Until cancelled, or until `stopping` is set: what is under way is then finished."""
        timeout = aiohttp.ClientTimeout(total=90)
        async with aiohttp.ClientSession(
            self.url, timeout=timeout, connector=aiohttp.TCPConnector(limit=64)
        ) as http:
            try:
                while not self.stopping:
                    task = asyncio.create_task(self._conversation(http))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    # a conversation is 1 to 3 turns (mean 2), each a request and, one time in two,
                    # a report
                    await asyncio.sleep(self.rng.expovariate(self.rate / 3.0))
            finally:
                await asyncio.gather(*self._tasks)

    async def _conversation(self, http: aiohttp.ClientSession) -> None:
        self._clients += 1
        scenario = "rules" if self._clients % 5 == 0 else "default"
        headers = {"x-reef-scenario": scenario}
        if self.rng.random() < 0.5:
            headers["x-reef-tag-session"] = f"soak-{uuid.uuid4().hex}"
            headers["x-reef-tag-client"] = f"client-{self._clients}"
        messages = [
            {
                "role": "user",
                "content": f"write {self.rng.choice(['river', 'lemon', 'stone', 'cloud'])} {self._clients}",
            }
        ]
        for turn in range(self.rng.randint(1, 3)):
            try:
                answer = await self._turn(http, scenario, headers, messages)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if not self.stopping:
                    self.seen.counts["failed"] += 1
                    self.seen.failures.append(repr(error)[:200])
                return
            if answer is None:
                return
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": f"and again, {turn}"},
            ]

    async def _turn(
        self,
        http: aiohttp.ClientSession,
        scenario: str,
        headers: dict[str, str],
        messages: list[dict[str, str]],
    ) -> str | None:
        """One exchange, and perhaps a report on it. None where the conversation is over."""
        body = {"model": "reef", "messages": messages, "max_tokens": 8, "temperature": 1.0}
        dice = self.rng.random()
        if dice < 0.05:
            await self._leave(http, headers, body)
            return None
        if dice < 0.25:
            receipt, text = await self._stream(http, headers, body)
        elif dice < 0.33:
            receipt, text = await self._keyed(http, headers, body)
        else:
            receipt, text = await self._plain(http, headers, body)
        if receipt is None:
            return None
        self.seen.records[receipt] = scenario
        self.seen.counts["answered"] += 1
        if self.rng.random() < 0.5:
            await self._report(http, scenario, receipt, text)
        return text

    async def _plain(
        self, http: aiohttp.ClientSession, headers: dict[str, str], body: dict
    ) -> tuple[str | None, str]:
        async with http.post("/v1/chat/completions", json=body, headers=headers) as response:
            data = await response.json()
            if response.status != 200:
                return self._refused(response.status, data)
            return response.headers["x-reef-agent-record-id"], data["choices"][0]["message"][
                "content"
            ] or ""

    async def _keyed(
        self, http: aiohttp.ClientSession, headers: dict[str, str], body: dict
    ) -> tuple[str | None, str]:
        """With a key of one's own, and asked twice: one exchange. Right after the start of
        everything nobody can say for some seconds whether a key was used before: the client is
        told to come again, and does.
        """
        keyed = {**headers, "x-reef-agent-record-id": f"soak-{uuid.uuid4().hex}"}
        for _ in range(COME_AGAIN):
            async with http.post("/v1/chat/completions", json=body, headers=keyed) as response:
                data = await response.json()
                if response.status == 503 and data["error"]["code"] == "keys_unavailable":
                    self.seen.counts["told to come again"] += 1
                    await asyncio.sleep(float(response.headers["retry-after"]))
                    continue
                if response.status != 200:
                    return self._refused(response.status, data)
                break
        self.seen.counts["repeats"] += 1
        return await self._plain(http, keyed, body)

    async def _stream(
        self, http: aiohttp.ClientSession, headers: dict[str, str], body: dict
    ) -> tuple[str | None, str]:
        async with http.post(
            "/v1/chat/completions", json={**body, "stream": True}, headers=headers
        ) as response:
            data = (await response.read()).decode()
            if response.status != 200 or "data: [DONE]" not in data:
                return self._refused(response.status, data[-300:])
            self.seen.counts["streams"] += 1
            return response.headers["x-reef-agent-record-id"], "streamed"

    async def _leave(
        self, http: aiohttp.ClientSession, headers: dict[str, str], body: dict
    ) -> None:
        """Close the connection after the first bytes. Nobody was promised anything."""
        async with http.post(
            "/v1/chat/completions", json={**body, "stream": True, "max_tokens": 64}, headers=headers
        ) as response:
            await response.content.readany()
            response.close()
        self.seen.counts["dropped"] += 1

    async def _report(
        self, http: aiohttp.ClientSession, scenario: str, receipt: str, text: str
    ) -> None:
        score = sum("a" <= letter <= "z" for letter in text) / len(text) if text else 0.0
        body: dict = {"references": [receipt], "score": score}
        if scenario == "rules":
            body |= {
                "score": 0.0,
                "feedback": self.rng.choice(RULES) + f" ({self.rng.randint(0, 40)})",
            }
        async with http.post(
            "/reef/report", json=body, headers={"x-reef-scenario": scenario}
        ) as response:
            data = await response.json()
            if response.status != 202:
                self._refused(response.status, data)
                return
            self.seen.reports.append(data["agent_record_id"])
            self.seen.counts["reported"] += 1

    def _refused(self, status: int, data: object) -> tuple[None, str]:
        if not self.stopping:
            self.seen.counts["failed"] += 1
            self.seen.failures.append(f"{status}: {data}"[:200])
        return None, ""
