"""An exchange with the model: the client's request, and the engine's."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError

from reefcommon.conversation import opening
from reefcommon.events import AppliedHarness, Release
from reefcommon.ids import digest, shard_of
from services.gateway.domain import dialects
from services.gateway.domain.errors import invalid
from services.gateway.domain.memory import Charge

Api = Literal["chat.completions", "completions", "embeddings"]

INFERENCE: Mapping[str, Api] = {
    "/v1/chat/completions": "chat.completions",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}
REPORT = "/reef/report"
HOT = frozenset({*INFERENCE, *dialects.PATHS, REPORT})
"""The paths that the edge answers itself."""

LAST_PRIORITY = 100
MAX_TAG_CHARS = 256
MAX_DEPTH = 128  # readers of the event stop at 200 levels, and the event adds some of its own
# `thread-id` is Codex's: a helper of a session has a thread of its own.
_SESSIONS = b"""
x-reef-tag-session session_id x-session-id x-session-affinity x-claude-code-session-id thread-id
"""
_SESSION_HEADERS = tuple(_SESSIONS.split())
_PROMPT_PREFIX = 64
_TEXTS = "a string, a list of strings, or a list of token ids"
_VISIBLE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")  # it goes back in a header
_TRUTH: TypeAdapter[bool | None] = TypeAdapter(bool | None)


class Asked(NamedTuple):
    """The fields that the client asked for; others are removed from its answer."""

    # model and fingerprint: names of the model and of the release that the answer states
    model: str | None
    logprobs: bool
    token_ids: bool
    usage: bool
    stream: bool = False
    fingerprint: str | None = None


@dataclass(slots=True)
class Exchange:
    """An exchange, filled from the top down."""

    api: Api
    path: str
    raw: bytes  # decoded it may be 27 times as large, so that form is not kept
    scenario: str
    capture: bool
    tags: dict[str, str]
    session_tag: str | None
    session_end: bool
    shard: str
    asked: Asked
    traceparent: str
    started: float
    caller: str = ""
    record_id: str = ""
    sampling: dict[str, Any] | None = None
    release: Release | None = None
    loads: dict[str, str] = field(default_factory=dict)  # if they are not the release's
    # the change that the harness made to the messages, for the record
    harness: AppliedHarness | None = None
    # the format that the client spoke, if it was not a chat's
    dialect: str = ""
    pinned: bool = False
    # the head and its model, if a routing policy has chosen another release
    head: tuple[Release, str] | None = None
    model: str = ""
    engine: str = ""
    provider: str = ""  # the entry of `models:` that answered, if no node did
    digest: str | None = None
    keyed: bool = False
    still_mine: Callable[[], Awaitable[bool]] | None = None
    upstream: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    charge: Charge | None = None
    # True if an error ended its stream, after the head had said 200.
    broken: bool = False

    def fall_to_head(self) -> None:
        """Ask the head instead of the release that a routing policy has chosen."""
        assert self.head is not None
        (self.release, self.model), self.head = self.head, None
        self.loads = {}
        self.asked = self.asked._replace(fingerprint=self.release.release_id)
        self.upstream = orjson.dumps({**orjson.loads(self.upstream), "model": self.model})
        self.use_receipt(self.record_id)

    def use_receipt(self, record_id: str) -> None:
        """Set the receipt, and the headers with receipt, release and session."""
        self.record_id = record_id
        self.headers = []
        if self.capture:
            self.headers.append((b"x-reef-agent-record-id", record_id.encode()))
        if self.release is not None:
            self.headers.append((b"x-reef-release-id", self.release.release_id.encode()))
        if self.session_tag is not None:
            self.headers.append((b"x-reef-session-id", self.session_tag.encode("utf-8")))


def tags_of(
    headers: Iterable[tuple[bytes, bytes]], known: dict[bytes, bytes]
) -> tuple[dict[str, str], str | None]:
    """Return the `x-reef-tag-*` tags and the session tag.

    Raises:
        ApiError: a tag is longer than 256 characters, or has control characters.
    """
    tags = {
        name[11:].decode("latin-1"): _text(name, value)
        for name, value in headers
        if name.startswith(b"x-reef-tag-") and len(name) > 11
    }
    for name in _SESSION_HEADERS:
        value = known.get(name)
        if value:
            return tags, _text(name, value)
    return tags, None


@lru_cache(maxsize=4096)  # the tags of a conversation come with each of its turns
def _text(name: bytes, value: bytes) -> str:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        # replacing what cannot be read would make one session of several
        text = value.decode("latin-1")
    if len(text) > MAX_TAG_CHARS or not _VISIBLE.fullmatch(text):
        header = name.decode("latin-1")
        words = f"has more than {MAX_TAG_CHARS} characters, or unprintable ones"
        raise invalid(header, f"The header {header} {words}.")
    return text


def parse(api: Api, raw: bytes) -> dict[str, Any]:
    """Decode a request body.

    Raises:
        ApiError: not JSON, or a field that Reef reads has the wrong type.
    """
    body = json_object(raw)
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise invalid("model", "'model' must be a string.")
    priority = body.get("priority")
    if priority is not None and (type(priority) is not int or not 0 <= priority <= LAST_PRIORITY):
        words = f"'priority' must be 0, as users have it, or up to {LAST_PRIORITY} to give way."
        raise invalid("priority", words)
    if api == "chat.completions":
        _check_messages(body.get("messages"))
    elif api == "completions":
        _check_prompt(body)
    else:
        _check_input(body)
    check_depth(raw, body)
    return body


def json_object(raw: bytes) -> dict[str, Any]:
    """Decode a request body. Raises ApiError if it is no JSON object."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid(None, f"The request body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise invalid(None, "The request body must be a JSON object.")
    return body


def check_depth(raw: bytes, body: object) -> None:
    """Raise ApiError if readers of the event could not read the body."""
    if too_deep(raw, body):
        raise invalid(None, f"The request body is nested more than {MAX_DEPTH} levels deep.")


def too_deep(raw: bytes, body: object) -> bool:
    """Return whether `body`, which is `raw` decoded, has more than MAX_DEPTH levels."""
    return raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(body) > MAX_DEPTH


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "'messages' must be a non-empty list of message objects.")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            name = f"messages[{index}]"
            raise invalid(name, f"'{name}' must be an object with a role.")
        if not isinstance(message.get("role"), str):
            raise invalid(f"messages[{index}].role", f"'messages[{index}].role' must be a string.")


def _check_prompt(body: dict[str, Any]) -> None:
    prompt, embeds = body.get("prompt"), body.get("prompt_embeds")
    if embeds is not None and not isinstance(embeds, (str, list)):
        raise invalid("prompt_embeds", "'prompt_embeds' must be a string or a list of strings.")
    if not isinstance(embeds if prompt is None else prompt, (str, list)):
        raise invalid("prompt", f"'prompt' must be {_TEXTS}.")


def _check_input(body: dict[str, Any]) -> None:
    given = body.get("input")
    if "messages" in body:  # vLLM embeds conversations, too
        _check_messages(body["messages"])
        if given is None:
            return
    if not isinstance(given, (str, list)):
        raise invalid("input", f"'input' must be {_TEXTS}.")


def _depth(body: object) -> int:
    level: list[Any] = [body]
    depth = 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        children = (part.values() if isinstance(part, dict) else part for part in level)
        level = [child for child in chain.from_iterable(children) if type(child) in (dict, list)]
    return depth


def caller_of(bearer: str, body: dict[str, Any]) -> str:
    """Return a digest of the token and the end user of a request; "" without any."""
    user, safety = body.get("user"), body.get("safety_identifier")
    if not (bearer or user or safety):
        return ""
    return digest("caller", bearer, user, safety, length=16)


def shard_for(
    api: Api, scenario: str, session_tag: str | None, body: dict[str, Any], caller: str = ""
) -> str:
    """Return the shard of a conversation, the same for all its turns.

    It follows from the session tag, else from the caller and the conversation's beginning.
    """
    if session_tag is not None:
        return shard_of(scenario, "session", session_tag)
    who = ("caller", caller) if caller else ()
    if api == "chat.completions":
        return shard_of(scenario, *who, *opening(body["messages"]))
    prompt = body.get("prompt", body.get("input", ""))
    start = prompt[:_PROMPT_PREFIX] if isinstance(prompt, (str, list)) else prompt
    text = start if isinstance(start, str) else orjson.dumps(start).decode()
    return shard_of(scenario, *who, text)


def asked_of(
    api: Api, body: dict[str, Any], served: str = "", fingerprint: str | None = None
) -> Asked:
    """Return the fields that the client asked for. `served`: the model's name if it named none."""
    model = body.get("model") or served or None
    if api == "embeddings":
        return Asked(model, logprobs=False, token_ids=False, usage=False)
    logprobs = body.get("logprobs")
    if api == "chat.completions":
        logprobs = truth(logprobs, "logprobs")
    options = body.get("stream_options")
    return Asked(
        model=model,
        logprobs=logprobs is not None and logprobs is not False,
        token_ids=truth(body.get("return_token_ids"), "return_token_ids"),
        usage=isinstance(options, dict)
        and truth(options.get("include_usage"), "stream_options.include_usage"),
        stream=truth(body.get("stream"), "stream"),
        fingerprint=fingerprint,
    )


def truth(value: object, name: str) -> bool:
    """Read a flag as engines do: pydantic takes `1`, `"true"` and the like for booleans.

    Raises ApiError if it is no boolean.
    """
    # Reef overwrites these fields, so the engine cannot refuse them.
    if value is None or value is True or value is False:
        return value is True
    try:
        return _TRUTH.validate_python(value) is True
    except ValidationError:
        raise invalid(name, f"'{name}' must be a boolean.") from None
