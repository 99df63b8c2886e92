"""The gateway, as a seeker asks and reports: any client's requests, each under a key of its own."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import structlog

from reefcommon.errors import Poison, Unavailable, said
from reefcommon.recipe_context import ModelFailed
from reefkit.retry import RetryPolicy, retry_after_s

log = structlog.get_logger()

RECEIPT, RELEASE, SCENARIO = "x-reef-agent-record-id", "x-reef-release-id", "x-reef-scenario"
TRIES = RetryPolicy(0.25, 15.0)
_TAG = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
# The token, the scenario or the address is wrong: a person mends it. The seeker waits.
_SETUP = {401, 403, 404}
_AGAIN = {408, 425, 429}


class NoRelease(Unavailable):
    """The scenario has no release yet."""


class ExchangeAborted(ModelFailed):
    """The gateway died while it answered under this key: it can never be answered."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A parsed answer, and the release that gave it."""

    body: dict[str, Any]
    release_id: str


@dataclass(slots=True)
class SeekClient:
    """The gateway at `url`. Use it on the loop of the host. `waits`: the reason, if it does."""

    url: str
    token: str = ""
    in_flight: int = 8
    timeout_s: float = 600.0
    transport: httpx.AsyncBaseTransport | None = None
    waits: str = ""
    asked: int = 0
    _places: asyncio.Semaphore = field(init=False)
    _client: httpx.AsyncClient | None = None

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.in_flight)

    async def ask(
        self,
        scenario: str,
        key: str,
        body: Mapping[str, Any],
        tags: Mapping[str, str],
        release: Callable[[], str | None],
    ) -> Answer:
        """Ask until there is an answer. `key` is the receipt, `release` gives the one to ask.

        Raises:
            ExchangeAborted: the key can be used no more.
            ModelFailed: the request is refused, or `key` was used with another.
            ValueError: a tag cannot be sent.
        """
        headers = {SCENARIO: scenario, RECEIPT: key, **tag_headers(tags)}
        content = orjson.dumps(body)
        async with self._places:
            answer = await self._until_taken("/v1/chat/completions", content, headers, release)
        if answer.status_code >= 300:
            lost = answer.status_code == 409 and _code(answer) == "exchange_aborted"
            kind = ExchangeAborted if lost else ModelFailed
            raise kind(f"the gateway refuses {key}: {_reason(answer)}")
        self.asked += 1
        try:
            return Answer(orjson.loads(answer.content), answer.headers.get(RELEASE, ""))
        except orjson.JSONDecodeError as error:
            raise ModelFailed(f"the answer under {key} cannot be read: {error}") from None

    async def report(self, scenario: str, body: Mapping[str, Any]) -> None:
        """Send a report until it is durable. Raises Poison if it is refused."""
        headers = {SCENARIO: scenario}
        answer = await self._until_taken("/reef/report", orjson.dumps(body), headers)
        if answer.status_code >= 300:
            raise Poison(f"the gateway refuses a report: {_reason(answer)}")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _until_taken(
        self,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        release: Callable[[], str | None] | None = None,
    ) -> httpx.Response:
        failures = 0
        while True:
            wait_s, reason = 0.0, ""
            try:
                answer = await self._post(path, content, {**headers, **_pinned(release)})
            except NoRelease as error:
                reason = str(error)
            except httpx.HTTPError as error:
                reason = f"the gateway does not answer: {said(error)}"
            else:
                if not _comes_again(answer):
                    self.waits = ""
                    return answer
                reason, wait_s = _reason(answer), retry_after_s(answer.headers)
            failures += 1
            if reason != self.waits:
                log.warning("seeker_waits", path=path, reason=reason)
            self.waits = reason
            await asyncio.sleep(max(TRIES.delay_s(failures), wait_s))

    async def _post(self, path: str, content: bytes, headers: Mapping[str, str]) -> httpx.Response:
        if self._client is None:
            given = {"authorization": f"Bearer {self.token}"} if self.token else {}
            # The gateway is on this machine or network: no proxy of the environment.
            self._client = httpx.AsyncClient(
                base_url=self.url,
                headers={"content-type": "application/json", **given},
                timeout=self.timeout_s,
                limits=httpx.Limits(max_connections=2 * self.in_flight),
                trust_env=False,
                transport=self.transport,
            )
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        return await self._client.post(path, content=content, headers=sent)


def _pinned(release: Callable[[], str | None] | None) -> dict[str, str]:
    if release is None:
        return {}
    # Before the first release the base model answers, under no load: such units are refused.
    if (name := release()) is None:
        raise NoRelease("the scenario has no release yet")
    return {RELEASE: name}


def tag_headers(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of tags. Raises ValueError if a name or a value cannot be sent."""
    for name in tags:
        if not _TAG.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a tag: small letters, digits and -")
    headers = {f"x-reef-tag-{name}": str(value).strip() for name, value in tags.items()}
    for name, value in headers.items():
        if not value.isprintable():  # it would be refused here, as if the gateway were away
            raise ValueError(
                f"{name}: {value!r:.80} is no value of a tag: a line of printable text"
            )
    return headers


def _comes_again(answer: httpx.Response) -> bool:
    status = answer.status_code
    if status == 409:  # the gateway and this host do not know of the same head yet
        return _code(answer) == "release_not_served"
    return status >= 500 or status in _AGAIN or status in _SETUP


def _error(answer: httpx.Response) -> dict[str, Any]:
    try:
        error = orjson.loads(answer.content)["error"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _code(answer: httpx.Response) -> str:
    return str(_error(answer).get("code", ""))


def _reason(answer: httpx.Response) -> str:
    words = str(_error(answer).get("message") or answer.text[:200])
    return f"{words} (HTTP {answer.status_code})"
