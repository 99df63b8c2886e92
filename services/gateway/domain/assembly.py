"""A streamed answer: each chunk as the client gets it, and the whole as the unary answer would have been."""

from typing import Any

import orjson

from services.gateway.domain.answer import (
    MAX_CHOICES,
    Captured,
    doubt,
    finished,
    integers,
    numbers,
    raw_logprobs,
    spans_in,
    strip,
    usage_of,
)
from services.gateway.domain.exchange import Api, Asked

_KEPT = frozenset(
    {"id", "type", "role", "index", "name"}
)  # named once, or repeated whole; never pieces of a text
_NOT_HEAD = frozenset({"choices", "usage", "prompt_token_ids", "weight_version"})


MAX_ITEMS = 4096


class Malformed(ValueError):
    """No model would have sent this."""


class Choice:
    """One choice of a stream, as it grows."""

    __slots__ = (
        "extra",
        "finish_reason",
        "index",
        "logprob_rows",
        "logprobs",
        "message",
        "spans",
        "text",
        "token_ids",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.text: list[str] = []
        self.message: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.token_ids: list[Any] = []
        self.logprobs: list[Any] = []
        self.logprob_rows: list[Any] = []  # whole, where the client asked for them
        self.spans: list[dict[str, Any]] = []
        self.extra: dict[str, Any] = {}


class Assembly:
    """Takes the chunks of one stream. `error` is set where the upstream reported one inside the stream."""

    def __init__(self, api: Api, asked: Asked) -> None:
        self._chat = api == "chat.completions"
        self._asked = asked
        self._head: dict[str, Any] = {}
        self._choices: dict[int, Choice] = {}
        self._only: Choice | None = (
            None  # the one choice of a chat that asked for nothing of what Reef takes out
        )
        self._usage: object = None
        self._prompt_token_ids: list[int] = []
        self._mixed = False  # several prompts in one request: one list of prompt ids would be wrong for all but one
        self.chunks = 0
        self.error: str | None = None

    def take(self, chunk: dict[str, Any]) -> bool:
        """Add one chunk and turn it into what the client would have got without Reef. False: the client gets nothing of it."""
        self.chunks += 1
        if chunk.get("error") is not None:
            self.error = orjson.dumps(chunk["error"]).decode()[:1000]
            return True
        asked = self._asked
        if not self._head:
            self._head = {k: v for k, v in chunk.items() if k not in _NOT_HEAD}
            self._prompt_token_ids = integers(chunk.get("prompt_token_ids"))
            strip(chunk, asked)
        else:
            chunk.pop("weight_version", None)
        choices = chunk.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict):
                    self._add(choice)
        if asked.model is not None and "model" in chunk:
            chunk["model"] = asked.model
        if "usage" in chunk:
            usage = chunk["usage"] if asked.usage else chunk.pop("usage")
            if usage is not None:
                self._usage = usage
                return asked.usage or bool(choices)
        return True

    def piece(self, chunk: dict[str, Any]) -> bool:
        """Take the chunk that nearly all are, one more piece of text: the same as `take`, sooner. False: it is not such a one."""
        choice, choices = self._only, chunk.get("choices")
        if choice is None or type(choices) is not list or len(choices) != 1:
            return False
        if chunk.get("error") is not None or chunk.get("usage") is not None:
            return False
        part = choices[0]
        if (
            type(part) is not dict
            or type(index := part.get("index")) is not int
            or index != choice.index
        ):
            return False
        delta = part.get("delta")
        if (
            type(delta) is not dict
            or len(delta) != 1
            or type(text := delta.get("content")) is not str
        ):
            return False
        if part.get("finish_reason") is not None or "prompt_token_ids" in part:
            return False
        self.chunks += 1
        choice.text.append(text)
        token_ids = part.pop("token_ids", None)
        if token_ids:
            choice.token_ids += token_ids if type(token_ids) is list else [None]
        logprobs = part.get("logprobs")
        if logprobs is not None:
            try:
                (row,) = logprobs["content"]
                choice.logprobs.append(row["logprob"])
            except (KeyError, TypeError, ValueError):
                choice.logprobs += raw_logprobs(logprobs)
            part["logprobs"] = None
        chunk.pop("weight_version", None)
        if not self._asked.usage:
            chunk.pop("usage", None)
        if self._asked.model is not None and "model" in chunk:
            chunk["model"] = self._asked.model
        return True

    def _add(self, part: dict[str, Any]) -> None:
        """Take a choice's part of a chunk, and out of it what only Reef asked for. Types are checked once, at the end."""
        index = part.get("index", 0)
        choice = self._choices.get(index) if type(index) is int else None
        if choice is None:
            choice = self._new(index, part)
            if choice is None:
                return
        asked = self._asked
        if asked.token_ids:
            token_ids = part.get("token_ids")
        else:
            token_ids = part.pop("token_ids", None)
            part.pop("prompt_token_ids", None)
        if token_ids:
            choice.token_ids += (
                token_ids if isinstance(token_ids, list) else [None]
            )  # what is no list spoils the whole
        logprobs = part.get("logprobs")
        if logprobs is not None:
            choice.logprobs += raw_logprobs(logprobs)
            if asked.logprobs:
                choice.logprob_rows.append(logprobs)
            else:
                part["logprobs"] = None
        reason = part.get("finish_reason")
        if reason is not None:
            self._end(choice, part, reason)
        self._add_text(choice, part)

    def _new(self, index: object, part: dict[str, Any]) -> Choice | None:
        own_prompt = integers(part.get("prompt_token_ids"))
        if own_prompt and self._prompt_token_ids and own_prompt != self._prompt_token_ids:
            self._mixed = True
        self._prompt_token_ids = self._prompt_token_ids or own_prompt
        if type(index) is not int or not 0 <= index < MAX_CHOICES:
            strip(part, self._asked)
            return None
        choice = self._choices[index] = Choice(index)
        plain = (
            self._chat
            and len(self._choices) == 1
            and not self._asked.token_ids
            and not self._asked.logprobs
        )
        self._only = choice if plain else None
        return choice

    def _end(self, choice: Choice, part: dict[str, Any], reason: object) -> None:
        choice.spans = spans_in(part.pop("weight_versions", None))
        choice.finish_reason = reason if isinstance(reason, str) else None
        choice.extra = {
            k: v for k, v in part.items() if k in {"stop_reason", "content_filter_results"}
        }

    def _add_text(self, choice: Choice, part: dict[str, Any]) -> None:
        if not self._chat:
            text = part.get("text")
            if isinstance(text, str):
                choice.text.append(text)
            return
        delta = part.get("delta")
        if not isinstance(delta, dict) or not delta:
            return
        for key, value in delta.items():
            if key == "content" and isinstance(value, str):
                choice.text.append(value)
            elif value is not None:
                merge(choice.message, key, value)

    @property
    def prompt_tokens(self) -> int:
        """How many prompt ids the engine gave."""
        return len(self._prompt_token_ids)

    def captured(self, *, estimate: bool = False) -> Captured:
        """What the engine said for Reef. `estimate`: count what came where the engine stated no usage."""
        rows = [
            {
                "index": c.index,
                "finish_reason": c.finish_reason,
                "token_ids": integers(c.token_ids),
                "logprobs": numbers(c.logprobs),
                "weight_versions": c.spans,
            }
            for _, c in sorted(self._choices.items())
        ]
        usage = usage_of(self._usage)
        if usage is None and estimate and self._prompt_token_ids:
            count = sum(len(c.token_ids) for c in self._choices.values())
            usage = {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": count,
                "estimated": True,
            }
        captured = Captured([] if self._mixed else self._prompt_token_ids, rows, usage)
        doubt(captured)
        return captured

    def answer(self) -> dict[str, Any] | None:
        """The whole, in the shape of the unary answer; None where no chunk came."""
        if not self._head:
            return None
        kind = "chat.completion" if self._chat else "text_completion"
        choices = [self._whole(choice) for _, choice in sorted(self._choices.items())]
        whole = {**self._head, "object": kind, "choices": choices, "usage": self._usage}
        if self._asked.model is not None:
            whole["model"] = self._asked.model
        if self._asked.token_ids:
            whole["prompt_token_ids"] = self._prompt_token_ids
        return whole

    def _whole(self, choice: Choice) -> dict[str, Any]:
        logprobs = joined(choice.logprob_rows) if choice.logprob_rows else None
        whole: dict[str, Any] = {
            "index": choice.index,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            **choice.extra,
        }
        if self._asked.token_ids:
            whole["token_ids"] = choice.token_ids
        text = "".join(choice.text)
        if not self._chat:
            return {**whole, "text": text}
        message = finished(choice.message)
        calls = message.get("tool_calls")
        content = text if text or not calls else None
        return {**whole, "message": {"role": "assistant", **message, "content": content}}

    def notice(self, record_id: str) -> bytes:
        """The last chunk before the terminator: no choices, and the receipt."""
        head = {
            key: self._head[key]
            for key in ("id", "object", "created", "model")
            if key in self._head
        }
        if self._asked.model is not None:
            head["model"] = self._asked.model
        return (
            b"data: "
            + orjson.dumps({**head, "choices": [], "reef": {"agent_record_id": record_id}})
            + b"\n\n"
        )


def merge(into: dict[str, Any], key: str, value: Any) -> None:
    """Add one field of a delta: texts are joined, what names a thing is kept, items of a list find their place by `index`."""
    old = into.get(key)
    if old is None:
        into[key] = [] if isinstance(value, list) else value
        if isinstance(value, list):
            _merge_items(into[key], value)
    elif isinstance(value, str) and isinstance(old, str):
        if key not in _KEPT:
            into[key] = old + value
    elif isinstance(value, dict) and isinstance(old, dict):
        for inner, item in value.items():
            if item is not None:
                merge(old, inner, item)
    elif isinstance(value, list) and isinstance(old, list):
        _merge_items(old, value)
    else:
        into[key] = value


def _merge_items(into: list[Any], items: list[Any]) -> None:
    if len(into) + len(items) > MAX_ITEMS:  # each is compared with all before it
        raise Malformed(f"more than {MAX_ITEMS} parts in one list")
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        place = (
            next((old for old in into if isinstance(old, dict) and old.get("index") == index), None)
            if index is not None
            else None
        )
        if place is None:
            into.append(dict(item) if isinstance(item, dict) else item)
            continue
        for key, value in item.items():
            if value is not None:
                merge(place, key, value)


def joined(rows: list[Any]) -> dict[str, Any]:
    """The `logprobs` of all chunks of a choice as one."""
    whole: dict[str, Any] = {}
    for row in rows:
        for key, value in row.items() if isinstance(row, dict) else ():
            if isinstance(value, list) and isinstance(whole.get(key), list):
                whole[key] = whole[key] + value
            elif whole.get(key) is None:
                whole[key] = value
    return whole
