"""Many conversations at once, and a note of everything that their clients were answered.

Turns follow each other, unary and streamed, some under keys that are sent again, some left in the
middle. Their rewards are reported turn by turn, or for a whole conversation, or late. What fails is
tried again as a person would: a new request, or the same key.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import orjson

from recipes.sao.examples.tiny import tasks
from tests.chaos.facts import Answer, Reported

TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=5)
# The random model's bytes are seldom text that is tokenised to the same bytes again, so the turns
# of a conversation of long answers do not join. Half of the single tokens are.
MAX_TOKENS = (1, 12)
TRIES = 60
BROKEN = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


@dataclass
class Book:
    """What clients hold, in order of arrival."""

    answers: list[Answer] = field(default_factory=list)
    reports: list[Reported] = field(default_factory=list)

    @property
    def counts(self) -> str:
        """In words."""
        whole = sum(a.complete for a in self.answers)
        accepted = sum(r.status == 202 for r in self.reports)
        return f"{whole}/{len(self.answers)} answers, {accepted}/{len(self.reports)} reports"


@dataclass(frozen=True)
class Turn:
    """What one request asks for."""

    conversation: str
    number: int
    messages: list[dict[str, str]]
    session: str
    key: str
    stream: bool
    leave: bool
    seed: int
    max_tokens: int = MAX_TOKENS[-1]


class Load:
    """`users` clients. `gateway` says where the gateway is now."""

    def __init__(
        self,
        gateway: Callable[[], str],
        book: Book,
        *,
        seed: int,
        users: int,
        pause_s: float,
        keys: float = 0.2,
    ) -> None:
        self._gateway = gateway
        self._book = book
        self._seed = seed
        self._users = users
        self._pause_s = pause_s
        self._keys = keys
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Until `end`; conversations under way are finished then."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT, connector=connector, trust_env=False) as http,
            asyncio.TaskGroup() as crowd,
        ):
            for number in range(self._users):
                crowd.create_task(self._user(http, number))

    def end(self) -> None:
        """No new conversation begins."""
        self._ending.set()

    async def _user(self, http: aiohttp.ClientSession, number: int) -> None:
        rng, count = random.Random(f"{self._seed}/{number}"), 0
        while not self._ending.is_set():
            count += 1
            await self._converse(http, rng, f"{self._seed}-{number}-{count}")

    async def _converse(self, http: aiohttp.ClientSession, rng: random.Random, name: str) -> None:
        messages = [{"role": "user", "content": f"{rng.choice(tasks.TRAIN)} {name}"}]
        session = f"session-{name}" if rng.random() < 0.5 else ""
        whole_at_the_end = rng.random() < 0.3
        max_tokens = rng.choice(MAX_TOKENS)
        receipts, scores = [], []
        for turn in range(rng.choice((1, 1, 2, 3))):
            answer = await self._turn(http, rng, name, turn, messages, session, max_tokens)
            if answer is None:
                break
            score = tasks.score(None, answer.content)
            receipts.append(answer.receipt)
            scores.append(score)
            if not whole_at_the_end:
                await self._report(http, rng, (answer.receipt,), score)
            messages = [
                *messages,
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": f"again, {turn}"},
            ]
            await asyncio.sleep(rng.expovariate(1 / self._pause_s))
        if whole_at_the_end and receipts:
            await self._report(http, rng, tuple(receipts), sum(scores) / len(scores))

    async def _turn(
        self,
        http: aiohttp.ClientSession,
        rng: random.Random,
        name: str,
        number: int,
        messages: list[dict[str, str]],
        session: str,
        max_tokens: int,
    ) -> Answer | None:
        """Asked until answered; None where the client left, or gave up."""
        key = f"key-{name}-{number}" if rng.random() < self._keys else ""
        stream = rng.random() < 0.4
        turn = Turn(
            name,
            number,
            messages,
            session,
            key,
            stream,
            leave=stream and not key and rng.random() < 0.08,
            seed=rng.randrange(2**31),
            max_tokens=max_tokens,
        )
        again = bool(key) and rng.random() < 0.4
        for _ in range(TRIES):
            answer = await self.ask(http, turn)
            if answer.left:
                return None
            if answer.complete:
                if again:
                    await self.ask(http, turn)
                return answer
            if (
                turn.key and answer.status == 200
            ):  # a stream that broke off is what this key stands for now: the next try is another one
                turn = replace(turn, key=f"{turn.key}x")
            await asyncio.sleep(rng.uniform(0.2, 0.8))
            if self._ending.is_set() and not key:
                return None
        return None

    async def ask(self, http: aiohttp.ClientSession, turn: Turn) -> Answer:
        """One request, noted whatever came of it."""
        body = {
            "model": "reef",
            "messages": turn.messages,
            "max_tokens": turn.max_tokens,
            "temperature": 1.0,
            "seed": turn.seed,
        }
        headers = {"content-type": "application/json"}
        if turn.session:
            headers["x-reef-tag-session"] = turn.session
        if turn.key:
            headers["x-reef-agent-record-id"] = turn.key
        if turn.stream:
            body["stream"] = True
        sent = time.time()
        seen: dict[str, Any] = {"key": turn.key, "stream": turn.stream}
        try:
            async with http.post(
                f"{self._gateway()}/v1/chat/completions", data=orjson.dumps(body), headers=headers
            ) as response:
                seen |= _headers(response)
                if turn.stream and response.status == 200:
                    await _read_stream(response, seen, leave=turn.leave)
                else:
                    _take(await response.read(), response.status, seen)
        except BROKEN as error:
            seen |= {"complete": False, "error": repr(error)}
        answer = Answer(turn.conversation, turn.number, sent, time.time(), **seen)
        self._book.answers.append(answer)
        return answer

    async def _report(
        self,
        http: aiohttp.ClientSession,
        rng: random.Random,
        receipts: tuple[str, ...],
        score: float,
    ) -> None:
        """Reported until acknowledged; a report with a key may be sent twice."""
        key = f"report-{receipts[0]}" if rng.random() < 1.5 * self._keys else ""
        again = bool(key) and rng.random() < 0.3
        for _ in range(TRIES):
            if (await self.report(http, receipts, score, key)).status == 202:
                if again:
                    await self.report(http, receipts, score, key)
                return
            await asyncio.sleep(rng.uniform(0.2, 0.8))

    async def report(
        self, http: aiohttp.ClientSession, receipts: tuple[str, ...], score: float, key: str = ""
    ) -> Reported:
        """One report, noted whatever came of it."""
        body: dict[str, Any] = {"score": score, "references": list(receipts)}
        if key:
            body["agent_record_id"] = key
        sent, seen = time.time(), {"key": key}
        try:
            async with http.post(
                f"{self._gateway()}/reef/report",
                data=orjson.dumps(body),
                headers={"content-type": "application/json"},
            ) as response:
                raw = await response.read()
                seen["status"] = response.status
                if response.status == 202:
                    seen["report_id"] = orjson.loads(raw)["agent_record_id"]
                else:
                    seen["error"] = raw[:300].decode(errors="replace")
        except BROKEN as error:
            seen["error"] = repr(error)
        reported = Reported(receipts, sent, time.time(), **seen)
        self._book.reports.append(reported)
        return reported


def _headers(response: aiohttp.ClientResponse) -> dict[str, Any]:
    return {
        "status": response.status,
        "receipt": response.headers.get("x-reef-agent-record-id", ""),
        "release_id": response.headers.get("x-reef-release-id", ""),
    }


def _take(raw: bytes, status: int, seen: dict[str, Any]) -> None:
    if status != 200:
        seen["error"] = raw[:300].decode(errors="replace")
        return
    seen["content"] = orjson.loads(raw)["choices"][0]["message"]["content"] or ""
    seen["complete"] = True


async def _read_stream(
    response: aiohttp.ClientResponse, seen: dict[str, Any], *, leave: bool
) -> None:
    parts: list[str] = []
    async for line in response.content:
        data = line.strip().removeprefix(b"data: ")
        if data == b"[DONE]":
            seen["complete"] = True
        elif data.startswith(b"{"):
            frame = orjson.loads(data)
            if "error" in frame:
                seen["error"] = data[:300].decode(errors="replace")
            parts += [
                (choice.get("delta") or {}).get("content") or ""
                for choice in frame.get("choices") or ()
            ]
            if leave and any(parts):
                seen["left"] = True
                break
    seen["content"] = "".join(parts)
    if seen.get("error") or seen.get("left"):
        seen["complete"] = False
