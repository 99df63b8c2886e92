"""A streamed answer: chunks stripped for the client, and joined for the record."""

from dataclasses import dataclass, field
from typing import Any

from services.gateway.domain import answer as unary
from services.gateway.domain.answer import Captured, integers, strip
from services.gateway.domain.deltas import content_of, merge
from services.gateway.domain.errors import relayed
from services.gateway.domain.exchange import Api, Asked
from services.gateway.domain.jsontext import dumps

_NOT_HEAD = frozenset({"choices", "usage", "prompt_token_ids", "weight_version", "sampling_params"})


@dataclass(slots=True)
class Choice:
    """A choice of a stream, as it grows."""

    index: int
    pieces: list[Any] = field(default_factory=list)
    message: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    token_ids: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    logprob_rows: list[Any] = field(default_factory=list)  # whole, if the client asked for them
    spans: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


class Assembly:
    """Joins the chunks of a stream. `error` is set if the upstream reported one."""

    __slots__ = (
        "_asked", "_chat", "_choices", "_head", "_hides_ids", "_hides_logprobs", "_mixed", "_named",
        "_prompt_token_ids", "_sampling", "_usage", "chunks", "error",
    )  # fmt: skip

    def __init__(self, api: Api, asked: Asked) -> None:
        self._chat = api == "chat.completions"
        self._asked = asked
        self._hides_ids = not asked.token_ids
        self._hides_logprobs = not asked.logprobs
        names = {"model": asked.model, "system_fingerprint": asked.fingerprint}
        self._named = {key: name for key, name in names.items() if name is not None}
        self._head: dict[str, Any] = {}
        self._choices: dict[int, Choice] = {}
        self._usage: object = None
        self._sampling: object = None
        self._prompt_token_ids: list[int] = []
        self._mixed = False  # several prompts: one list of ids would be wrong for all but one
        self.chunks = 0
        self.error: str | None = None

    @property
    def complete(self) -> bool:
        """Return whether each choice that began has ended."""
        return bool(self._choices) and all(one.finish_reason for one in self._choices.values())

    def take(self, chunk: dict[str, Any]) -> bool:
        """Add a chunk and strip it for the client. False if it is then empty."""
        self.chunks += 1
        if "error" in chunk and chunk["error"] is not None:
            self.error = dumps(chunk["error"]).decode()[:1000]
            chunk["error"] = relayed(500, chunk["error"])
            return True
        if not self._head:  # vLLM sends the prompt's ids with the first chunk only
            self._head = {k: v for k, v in chunk.items() if k not in _NOT_HEAD}
            self._prompt_token_ids = integers(chunk.get("prompt_token_ids"))
            strip(chunk, self._asked)
        choices = chunk.get("choices")
        if type(choices) is list:
            for part in choices:
                if type(part) is dict:
                    self._add(part)
        chunk.pop("weight_version", None)
        if "sampling_params" in chunk:
            self._sampling = chunk["sampling_params"]
            if self._hides_ids:
                del chunk["sampling_params"]
        chunk.update(self._named)
        # Reef asks for usage always; a chunk without other fields is not for the client
        if "usage" not in chunk:
            return True
        asked = self._asked.usage
        usage = chunk["usage"] if asked else chunk.pop("usage")
        if usage is None:
            return True
        self._usage = usage
        return asked or bool(choices)

    def _add(self, part: dict[str, Any]) -> None:
        # Types of what is collected are checked once, at the end.
        index = part.get("index") or 0
        choice = self._choices.get(index) if type(index) is int else None
        if choice is None and (choice := self._new(index, part)) is None:
            return
        token_ids = part.get("token_ids")
        if token_ids:  # a value that is no list makes all of them unusable
            choice.token_ids += token_ids if type(token_ids) is list else [None]
        if self._hides_ids:
            part.pop("token_ids", None)
            part.pop("prompt_token_ids", None)
        logprobs = part.get("logprobs")
        if logprobs is not None:
            try:  # nearly always a chunk is one token
                (row,) = logprobs["content"]
                choice.logprobs.append(row["logprob"])
            except (KeyError, TypeError, ValueError):
                choice.logprobs += unary.raw_logprobs(logprobs)
            if self._hides_logprobs:
                part["logprobs"] = None
            else:
                choice.logprob_rows.append(logprobs)
        if part.get("finish_reason"):
            self._end(choice, part, part["finish_reason"])
        delta = part.get("delta") if self._chat else _text_in(part)
        for key, value in delta.items() if type(delta) is dict else ():
            if key == "content" and type(value) is str:
                choice.pieces.append(value)
            elif key != "content" and value is not None:
                merge(choice.message, key, value)
            elif value is not None:
                choice.pieces += value if type(value) is list else [value]

    def _new(self, index: object, part: dict[str, Any]) -> Choice | None:
        own_prompt = integers(part.get("prompt_token_ids"))
        if own_prompt and self._prompt_token_ids and own_prompt != self._prompt_token_ids:
            self._mixed = True
        self._prompt_token_ids = self._prompt_token_ids or own_prompt
        if type(index) is not int or not 0 <= index < unary.MAX_CHOICES:
            strip(part, self._asked)
            return None
        choice = self._choices[index] = Choice(index)
        return choice

    def _end(self, choice: Choice, part: dict[str, Any], reason: object) -> None:
        # Some providers end a choice twice, the second time without their statements.
        choice.spans = unary.spans_in(part.pop("weight_versions", None)) or choice.spans
        choice.finish_reason = reason if isinstance(reason, str) else None
        kept = {"stop_reason", "matched_stop", "content_filter_results"} & part.keys()
        choice.extra |= {name: part[name] for name in kept}

    def captured(self, *, estimate: bool = False) -> Captured:
        """Return the engine's statements for Reef.

        `estimate`: count tokens if it stated no usage.
        """
        choices = [choice for _, choice in sorted(self._choices.items())]
        rows = [
            {
                "index": choice.index,
                "finish_reason": choice.finish_reason,
                "token_ids": integers(choice.token_ids),
                "logprobs": unary.numbers(choice.logprobs),
                "weight_versions": choice.spans,
            }
            for choice in choices
        ]
        usage = unary.usage_of(self._usage)
        if usage is None and estimate and self._prompt_token_ids:
            usage = {
                "prompt_tokens": len(self._prompt_token_ids),
                "completion_tokens": sum(len(choice.token_ids) for choice in choices),
                "estimated": True,
            }
        prompt = [] if self._mixed else self._prompt_token_ids
        captured = Captured(prompt, rows, usage, self._sampling)
        unary.doubt(captured)
        return captured

    def answer(self) -> dict[str, Any] | None:
        """Return the whole in the shape of the unary answer; None if no chunk came."""
        if not self._head:
            return None
        kind = "chat.completion" if self._chat else "text_completion"
        choices = [self._whole(choice) for _, choice in sorted(self._choices.items())]
        whole = {**self._head, "object": kind, "choices": choices, "usage": self._usage}
        whole.update(self._named)
        if self._asked.token_ids:
            whole["prompt_token_ids"] = self._prompt_token_ids
        return whole

    def _whole(self, choice: Choice) -> dict[str, Any]:
        whole: dict[str, Any] = {
            "index": choice.index,
            "logprobs": joined(choice.logprob_rows) if choice.logprob_rows else None,
            "finish_reason": choice.finish_reason,
            **choice.extra,
        }
        if self._asked.token_ids:
            whole["token_ids"] = choice.token_ids
        content = content_of(choice.pieces)
        if not self._chat:
            return {**whole, "text": content}
        message = unary.finished(choice.message)
        empty = None if message.get("tool_calls") else ""
        return {**whole, "message": {**message, "content": content or empty}}


def _text_in(part: dict[str, Any]) -> dict[str, Any] | None:
    text = part.get("text")
    return {"content": text} if type(text) is str else None


def joined(rows: list[Any]) -> dict[str, Any]:
    """Join the `logprobs` of all chunks of a choice."""
    whole: dict[str, Any] = {}
    for row in rows:
        for key, value in row.items() if isinstance(row, dict) else ():
            if isinstance(value, list) and isinstance(whole.get(key), list):
                whole[key] = whole[key] + value
            elif whole.get(key) is None:
                whole[key] = value
    return whole
