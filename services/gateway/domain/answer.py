"""A unary answer: the record's part of it, and the client's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from reefcommon.surrogates import whole
from services.gateway.domain.exchange import Api, Asked, too_deep
from services.gateway.domain.jsontext import dumps
from services.gateway.domain.sse import DONE


@dataclass(slots=True)
class Captured:
    """The engine's statements for Reef, in the shape of the event. `sampling` is unchecked."""

    prompt_token_ids: list[int] = field(default_factory=list)
    completions: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    sampling: object = None


MAX_ID = 2**31  # of tokens, counts and choices: what the store's columns hold
MAX_CHOICES = 1024


def integers(value: object) -> list[int]:
    """Return `value` if it is a list of token ids, else an empty list."""
    if not isinstance(value, list) or not value or set(map(type, value)) != {int}:
        return []
    return value if min(value) >= 0 and max(value) < MAX_ID else []


def numbers(value: list[Any]) -> list[float]:
    """Return `value` if all items are numbers, else an empty list."""
    return value if set(map(type, value)) <= {float, int} else []


def usage_of(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens"), value.get("completion_tokens", 0)
    if all(type(count) is int and 0 <= count < MAX_ID for count in (prompt, completion)):
        return {"prompt_tokens": prompt, "completion_tokens": completion}
    return None


def raw_logprobs(value: object) -> list[Any]:
    """Return the log-probabilities of a choice of a chat or a completion, unchecked."""
    if not isinstance(value, dict):
        return [None]
    content = value.get("content")
    if isinstance(content, list):
        try:
            return [item["logprob"] for item in content]
        except (KeyError, TypeError):
            return [None]
    flat = value.get("token_logprobs")
    return flat if isinstance(flat, list) else []


def spans_in(value: object) -> list[dict[str, Any]]:
    """Return weight-version spans in the shape of the event, without those that are malformed."""
    if not isinstance(value, list):
        return []
    return [
        {"version": version, "start": start, "end": end}
        for span in value
        if isinstance(span, dict) and isinstance(version := span.get("version"), str)
        if type(start := span.get("start")) is int and type(end := span.get("end")) is int
        if 0 <= start <= end < MAX_ID
    ]


def take(answer: dict[str, Any], asked: Asked) -> Captured:
    """Remove from a unary answer the fields that only Reef asked for, and return them."""
    captured = Captured(
        integers(answer.get("prompt_token_ids")),
        usage=usage_of(answer.get("usage")),
        sampling=answer.get("sampling_params"),
    )
    choices = answer.get("choices")
    mixed = False  # several prompts: one list of prompt ids would be wrong for all but one
    for position, choice in enumerate(choices if isinstance(choices, list) else ()):
        if not isinstance(choice, dict):
            continue
        own_prompt = integers(choice.get("prompt_token_ids"))  # vLLM's place for completions
        if position == 0 and own_prompt:
            captured.prompt_token_ids = own_prompt
        mixed = mixed or (bool(own_prompt) and own_prompt != captured.prompt_token_ids)
        index, reason = choice.get("index"), choice.get("finish_reason")
        captured.completions.append(
            {
                "index": index if type(index) is int and 0 <= index < MAX_CHOICES else position,
                "finish_reason": reason if isinstance(reason, str) else None,
                "token_ids": integers(choice.get("token_ids")),
                "logprobs": numbers(raw_logprobs(choice.get("logprobs"))),
                "weight_versions": spans_in(choice.get("weight_versions")),
            }
        )
        strip(choice, asked)
    if mixed:
        captured.prompt_token_ids = []
    strip(answer, asked)
    if asked.model is not None:
        answer["model"] = asked.model
    if asked.fingerprint is not None:
        answer["system_fingerprint"] = asked.fingerprint
    doubt(captured)
    return captured


def doubt(captured: Captured) -> None:
    """Drop the log-probabilities if `usage` and the number of token ids differ."""
    if captured.usage is not None and len(captured.completions) == 1:
        only = captured.completions[0]
        if only["token_ids"] and len(only["token_ids"]) != captured.usage["completion_tokens"]:
            only["logprobs"] = []


def encoded(answer: dict[str, Any], sent: bytes = b"\\ud") -> bytes | None:
    """Encode an answer for its event; None if it is nested too deeply.

    `sent`: the client's encoding. It is used if it holds no half of a surrogate pair.
    """
    try:
        text = orjson.dumps(answer) if b"\\ud" in sent else sent
    except orjson.JSONEncodeError:
        try:
            text = orjson.dumps(whole(answer))
        except (orjson.JSONEncodeError, RecursionError):
            return None
    return None if too_deep(text, answer) else text


def recorded(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return a unary answer in the form of a stream's record; None if the client's is equal."""
    choices = answer.get("choices")
    kept = list(choices) if isinstance(choices, list) else []
    for place, choice in enumerate(kept):
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict) and (message.get("tool_calls") or not message.get("role")):
            kept[place] = {**choice, "message": finished(message)}
    return {**answer, "choices": kept} if kept and kept != choices else None


def finished(message: dict[str, Any]) -> dict[str, Any]:
    """Return an assistant's message with its calls in order, without `index`, with arguments."""
    message = {**message, "role": message.get("role") or "assistant"}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    entries = []
    for call in sorted(calls, key=_place):
        if not isinstance(call, dict):
            continue
        entry = {key: value for key, value in call.items() if key != "index"}
        function = entry.get("function")
        if isinstance(function, dict):
            entry["function"] = {**function, "arguments": function.get("arguments") or "{}"}
        entries.append(entry)
    return {**message, "tool_calls": entries}


def as_stream(answer: Mapping[str, Any], api: Api, asked: Asked, end: bytes = DONE) -> bytes:
    """Return a unary answer as the events of a stream."""
    head = {key: value for key, value in answer.items() if key not in {"choices", "usage"}}
    if api == "chat.completions":
        head["object"] = "chat.completion.chunk"
    chunks, choices = [], answer.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        part = dict(choice) if isinstance(choice, dict) else choice
        message = part.pop("message", None) if isinstance(part, dict) else None
        if isinstance(message, dict):
            part["delta"] = delta = finished(message)
            if isinstance(calls := delta.get("tool_calls"), list):
                calls = [call for call in calls if isinstance(call, dict)]
                delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls)]
        chunks.append({**head, "choices": [part]})
    if asked.usage and answer.get("usage") is not None:
        chunks.append({**head, "choices": [], "usage": answer["usage"]})
    return b"".join(b"data: %b\n\n" % dumps(chunk) for chunk in chunks) + end


def _place(call: object) -> int:
    index = call.get("index") if isinstance(call, dict) else None
    return index if isinstance(index, int) else 0


def strip(part: dict[str, Any], asked: Asked) -> None:
    """Remove from an answer, a chunk or a choice the fields that only Reef asked for."""
    if not asked.token_ids:
        part.pop("prompt_token_ids", None)
        part.pop("token_ids", None)
        part.pop("sampling_params", None)
    part.pop("weight_versions", None)
    part.pop("weight_version", None)
    if not asked.logprobs and part.get("logprobs") is not None:
        part["logprobs"] = None
