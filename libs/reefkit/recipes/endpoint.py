"""An OpenAI endpoint over HTTP: a request, some tries, and the numbers of its answer."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import httpx
import orjson

from reefcommon.config_sections import ModelEndpoint
from reefcommon.errors import BadConfig, Unavailable
from reefcommon.recipe_context import ModelFailed, Reply
from reefkit.retry import RetryPolicy, retry_after_s

TRIES = RetryPolicy(0.5, 8.0, 3)
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_TOKENS_STATED = 10**9
# The fault is of the address, the key, the name or the account, not of the request.
_SETUP = {401, 402, 403, 404, 405, 407, 421, 426}
# A timeout; a request with the same key that is still under way; too many requests.
_AGAIN = {408, 409, 429}
_SHOWN_BYTES = 300
_LIMIT = "max_tokens"


class ModelAway(ModelFailed, Unavailable):
    """A model does not answer now, or its entry in `serve.yaml` is wrong. The unit waits."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A parsed answer."""

    body: dict[str, Any]
    prompt_tokens: int
    completion_tokens: int


class Endpoint:
    """A model. Call it on a single event loop."""

    def __init__(self, name: str, entry: ModelEndpoint) -> None:
        """Raises BadConfig if the key cannot be read."""
        self.name, self.entry = name, entry
        self.places = asyncio.Semaphore(entry.concurrency)
        self._key = key_of(name, entry)
        self._client: httpx.AsyncClient | None = None
        self._renames = False

    async def ask(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answered:
        """Raises ModelAway after some tries, and ModelFailed at once if it refuses the request."""
        failures = 0
        while True:
            content, renamed, status, wait_s = self._content(body), self._renames, 0, 0.0
            key = self._key
            try:
                async with asyncio.timeout(self.entry.timeout_s):
                    status, wait_s, text = await self._post(path, content, headers)
            except TimeoutError:
                reason = f"no answer within {self.entry.timeout_s:g} s"
            except ModelFailed:
                raise
            # Of the connection, or of an address or a key that no client can send.
            except Exception as error:  # noqa: BLE001
                reason = repr(error)
            else:
                if status < 300 and (found := _read(text, len(content))) is not None:
                    return found
                reason = f"status {status}: {text[:_SHOWN_BYTES]!r}"
                if status < 300:  # a proxy, a login page
                    reason = f"an answer that cannot be read: {reason}"
                elif _unsupported(text) == _LIMIT and not renamed:
                    self._renames = True
                    continue
                elif status in (401, 403) and self._renewed(key):
                    continue
                else:
                    self._check(status, text, reason)
            failures += 1
            if TRIES.exhausted(failures):
                kind = ModelFailed if status == 409 else ModelAway
                raise kind(f"model {self.name} is away ({failures} tries): {reason}")
            await asyncio.sleep(max(TRIES.delay_s(failures), wait_s))

    def _renewed(self, refused: str) -> bool:
        """Read the key's file again. Returns whether there is another key than the refused one."""
        with contextlib.suppress(BadConfig):
            self._key = key_of(self.name, self.entry)
        return self._key != refused

    def _content(self, body: Mapping[str, Any]) -> bytes:
        whole = {**body, "model": self.entry.model}
        if self._renames and _LIMIT in whole:
            whole["max_completion_tokens"] = whole.pop(_LIMIT)
        return orjson.dumps(whole)

    async def _post(
        self, path: str, content: bytes, headers: Mapping[str, str]
    ) -> tuple[int, float, bytes]:
        """Return status, seconds to wait, and body."""
        bearer = {"authorization": f"Bearer {self._key}"} if self._key else {}
        named = {**headers, **bearer}
        sent = [(name.encode(), value.encode()) for name, value in named.items()]
        url, text = self.entry.url + path, bytearray()
        async with self._http().stream("POST", url, content=content, headers=sent) as response:
            async for piece in response.aiter_bytes():
                text += piece
                if len(text) > MAX_ANSWER_BYTES:
                    raise ModelFailed(f"model {self.name} gives an answer without end")
            return response.status_code, retry_after_s(response.headers), bytes(text)

    def _check(self, status: int, text: bytes, reason: str) -> None:
        """Raises ModelAway or ModelFailed if another try cannot help."""
        if status in _SETUP or status < 400:
            raise ModelAway(f"model {self.name} refuses: {reason}; see models.{self.name}")
        if unknown := _unsupported(text):
            raise ModelAway(f"model {self.name} takes no such {unknown}: {reason}")
        if status < 500 and status not in _AGAIN:
            raise ModelFailed(f"model {self.name} refuses the request: {reason}")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=self.entry.concurrency)
            # The gateway is on this machine or network: no proxy of the environment.
            trust = not self.entry.url.startswith("http://")
            self._client = httpx.AsyncClient(
                headers={"content-type": "application/json"},
                limits=limits,
                timeout=self.entry.timeout_s,
                trust_env=trust,
            )
        return self._client


def _read(text: bytes, sent: int) -> Answered | None:
    try:
        body = orjson.loads(text)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    return Answered(body, *tokens_used(body, sent, len(text)))


def tokens_used(body: Mapping[str, Any], sent: int, received: int) -> tuple[int, int]:
    """Return the prompt and completion tokens, by the sizes in bytes if none are stated."""
    usage = body.get("usage")
    stated = usage if isinstance(usage, dict) else {}
    # About four characters a token.
    prompt = _count(stated.get("prompt_tokens"), sent // 4)
    return prompt, _count(stated.get("completion_tokens"), received // 4)


def _count(stated: object, estimated: int) -> int:
    sound = isinstance(stated, int | float) and 0 <= stated <= MAX_TOKENS_STATED
    return int(stated) if sound and isinstance(stated, int | float) else estimated


# An endpoint that answers in another form does so to all requests: it counts as away. A single
# request that meets this while others do not is found by the stage of signals.


def replies(name: str, answered: Answered, n: int) -> list[Reply]:
    """Return the choices of a chat. Raises ModelAway."""
    try:
        choices = answered.body["choices"]
        if len(choices) != n:
            raise ModelAway(f"model {name} gave {len(choices)} choices, not {n}")
        tokens = answered.prompt_tokens + answered.completion_tokens
        return [
            Reply(
                text=str(choice["message"].get("content") or ""),
                message=choice["message"],
                finish_reason=choice.get("finish_reason"),
                tokens=tokens,
            )
            for choice in choices
        ]
    except (LookupError, TypeError, AttributeError) as error:
        shown = str(answered.body)[:_SHOWN_BYTES]
        raise ModelAway(
            f"model {name}: an answer that cannot be read ({error!r}): {shown}"
        ) from None


def scores(name: str, answered: Answered, tokens: list[int]) -> list[float]:
    """Return the log-probabilities of a prompt's tokens from the second on.

    Raises:
        ModelAway: it gives none.
        ModelFailed: some are not finite.
    """
    try:
        rows = answered.body["choices"][0]["prompt_logprobs"]
        if len(rows) != len(tokens):
            raise ModelAway(f"model {name} scored {len(rows)} tokens, not {len(tokens)}")
        later = zip(rows[1:], tokens[1:], strict=True)
        found = [float(row[str(token)]["logprob"]) for row, token in later]
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ModelAway(f"model {name} gives no prompt log-probabilities: {error!r}") from None
    if not all(map(isfinite, found)):
        raise ModelFailed(f"model {name} gives log-probabilities that are not finite")
    return found


def _unsupported(text: bytes) -> str:
    """Return the parameter that this model never takes, if that is why it refuses."""
    # OpenAI's reasoning models know no max_tokens, and one temperature alone. Which of them answers
    # is a person's choice: units wait.
    try:
        error = orjson.loads(text)["error"]
        told = str(error.get("code", "")).startswith("unsupported_")
        return str(error.get("param") or "") if told else ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def key_of(name: str, entry: ModelEndpoint) -> str:
    if entry.key_env:
        if not (key := os.environ.get(entry.key_env, "").strip()):
            raise BadConfig(f"models.{name}.key_env: {entry.key_env} is not set")
        if not _single(key):
            raise BadConfig(f"models.{name}.key_env: {entry.key_env} holds no single key")
        return key
    if entry.key_file is None:
        return ""
    try:
        key = entry.key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadConfig(f"models.{name}.key_file: cannot read {entry.key_file}: {words}") from None
    if not _single(key):
        raise BadConfig(f"models.{name}.key_file: {entry.key_file} holds no single key")
    return key


def _single(key: str) -> bool:
    # What a header can hold.
    return bool(key) and key.isascii() and key.isprintable() and " " not in key
