"""The port of a dialect, and the parts that dialects share."""

# The edge turns a request into a chat request before anything else sees it, and the chat answer
# into the dialect's as the last thing. So records, sessions, keys and the spool know chats only,
# and the last event of a stream waits for the record as that of a chat does.

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson

from services.gateway.domain.errors import ApiError, invalid
from services.gateway.domain.exchange import check_depth, json_object, too_deep
from services.gateway.domain.jsontext import dumps

Json = dict[str, Any]
CHAT_PATH = "/v1/chat/completions"
REMEMBERED_CHARS = 32 * 1024 * 1024  # of all calls


@dataclass(slots=True)
class Spelling:
    """The text of tool arguments by call id: a client sends back an object, the model wrote a text.

    Another spelling would be other tokens, and the session would not go on where it was.
    """

    # Some models give the same id to a call of each turn, and many servers to calls of all
    # sessions: so the arguments are a part of the key.
    _texts: OrderedDict[tuple[str, int], str] = field(default_factory=OrderedDict)
    _chars: int = 0

    def keep(self, call_id: str, text: str) -> None:
        value = given_of(text)
        if text == _spelled(value):
            return
        key = (call_id, _mark(value))
        self._chars += _size(key, text) - _size(key, self._texts.pop(key, None))
        self._texts[key] = text
        while self._chars > REMEMBERED_CHARS:
            self._chars -= _size(*self._texts.popitem(last=False))

    def of(self, call_id: str, value: object) -> str:
        """Return the model's own text for arguments, or JSON as models write it."""
        text = self._texts.get((call_id, _mark(value)))
        return text if text is not None and given_of(text) == value else _spelled(value)


def _spelled(value: object) -> str:
    # The spacing of the corpora that models have read.
    return json.dumps(value, ensure_ascii=False)


def _mark(value: object) -> int:
    # Equal for what JSON clients do not tell apart: the order of keys, 1 and 1.0.
    if isinstance(value, dict):
        return hash(frozenset((key, _mark(item)) for key, item in value.items()))
    return hash(tuple(map(_mark, value)) if isinstance(value, list) else value)


def _size(key: tuple[str, int], text: str | None) -> int:
    # with the objects around a short text
    return 0 if text is None else len(key[0]) + len(text) + 256


@dataclass(slots=True)
class Turn:
    """A request in a dialect: its chat request, and what its answer needs to know."""

    asked: Json
    chat: Json
    stream: bool
    model: str
    spelling: Spelling
    # known when the answer begins
    receipt: str = ""
    created: int = 0
    ended: int = 0


class Translator(ABC):
    """Turns the chunks of a chat stream into the dialect's events."""

    # shows the client, at any time after the start, that a silent stream lives
    silence: ClassVar[tuple[Json, ...]] = ()

    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    @abstractmethod
    def begin(self) -> list[Json]:
        """Return the events before the first chunk."""

    @abstractmethod
    def chunk(self, chunk: Json) -> list[Json]:
        """Return the events of a chunk."""

    @abstractmethod
    def end(self) -> list[Json]:
        """Return the events of a complete stream, its terminal event last."""

    @abstractmethod
    def failure(self, error: Json) -> list[Json]:
        """Return the events of a stream that broke off."""


class Dialect(ABC):
    """A format. `api` names it in records."""

    api: ClassVar[str]

    @abstractmethod
    def chat(self, body: Json, spelling: Spelling, /) -> Json:
        """Return the chat request. Raises ApiError."""

    @abstractmethod
    def answer(self, turn: Turn, chat: Json, /) -> Json:
        """Return the answer to a chat's answer."""

    @abstractmethod
    def error(self, status: int, error: Json, /) -> Json:
        """Return the body of a refusal; `error` is the API's own `{message, type, …}`."""

    def turn(self, raw: bytes, spelling: Spelling) -> Turn:
        """Read a request. Raises ApiError."""
        body = json_object(raw)
        check_depth(raw, body)
        chat = self.chat(body, spelling)
        stream = body.get("stream")
        if stream not in (None, True, False):
            raise invalid("stream", "'stream' must be a boolean.")
        if stream:
            chat |= {"stream": True, "stream_options": {"include_usage": True}}
        model = body.get("model")
        return Turn(body, chat, bool(stream), model if isinstance(model, str) else "", spelling)


def event(data: Json) -> bytes:
    """Return a server-sent event whose name is the type of its data."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), dumps(data))


def read(text: str) -> Any:
    """Return the value of a JSON text; None if it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def given_of(arguments: str) -> Json:
    """Return the arguments of a call as an object."""
    value = read(arguments)
    if isinstance(value, dict) and not too_deep(arguments.encode(errors="replace"), value):
        return value
    # A text that is no object stays readable, as the field's type is an object.
    return {"arguments": arguments}


def texts_of(content: object, param: str, kinds: tuple[str, ...] = ("text",)) -> str:
    """Return the text of a string or of text blocks. Raises ApiError for other blocks."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block_text(block, param, kinds) for block in listed(content, param))


def block_text(block: Json, param: str, kinds: tuple[str, ...]) -> str:
    text = block.get("text")
    if block.get("type") not in kinds or not isinstance(text, str):
        raise invalid(param, f"'{param}' may hold text only, not {str(block.get('type'))[:40]!r}.")
    return text


def listed(value: object, param: str) -> list[Json]:
    """Return a list of objects. Raises ApiError."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise invalid(param, f"'{param}' must be a list of objects.")
    return value


def objects(value: object) -> list[Json]:
    """Return the objects of a list; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_field(block: Json, name: str, param: str) -> str:
    """Return a field that must be a text. Raises ApiError."""
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{param}.{name}", f"'{param}.{name}' must be a string.")
    return value


def copied(body: Json, names: dict[str, str]) -> Json:
    """Return the fields that are there, under their names in a chat."""
    return {to: body[name] for name, to in names.items() if body.get(name) is not None}


def quiet(chat: Json) -> Json:
    """Return a chat that says nothing of calls if it has no tools: nodes refuse it then."""
    if "tools" in chat or chat.get("tool_choice") not in (None, "auto", "none"):
        return chat
    return {n: chat[n] for n in chat if n not in ("tool_choice", "parallel_tool_calls")}


def unsupported(param: str, words: str) -> ApiError:
    return invalid(param, f"'{param}' {words}.")
