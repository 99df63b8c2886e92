"""A unary answer: what is recorded of it, and what of it the client gets.

An engine that gives no token ids (a provider) leaves the token fields empty; the record is then kept but never trained on.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson

from services.gateway.domain.exchange import Asked, too_deep


@dataclass(slots=True)
class Captured:
    """What the engine said for Reef: token ids and log-probabilities, in the shape of the event."""

    prompt_token_ids: list[int] = field(default_factory=list)
    completions: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] | None = None


MAX_ID = 2**31  # of tokens, counts and choices: what the store's columns hold
MAX_CHOICES = 1024


def integers(value: object) -> list[int]:
    """`value` where it is a list of token ids, else nothing: what goes into an event must be readable for ever."""
    if not isinstance(value, list) or not value or set(map(type, value)) != {int}:
        return []
    return value if min(value) >= 0 and max(value) < MAX_ID else []


def numbers(value: list[Any]) -> list[float]:
    """`value` where it is all numbers, else nothing."""
    return value if set(map(type, value)) <= {float, int} else []


def usage_of(value: object) -> dict[str, Any] | None:
    """The engine's token counts, where it states both."""
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens"), value.get("completion_tokens", 0)
    if (
        type(prompt) is not int
        or type(completion) is not int
        or not (0 <= prompt < MAX_ID and 0 <= completion < MAX_ID)
    ):
        return None
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def raw_logprobs(value: object) -> list[Any]:
    """The sampled tokens' log-probabilities in a choice's `logprobs`, unchecked: chat's `content[].logprob`, or `token_logprobs`."""
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


def logprobs_in(value: object) -> list[float]:
    """The same, or nothing where one of them is not a number."""
    return numbers(raw_logprobs(value))


def spans_in(value: object) -> list[dict[str, Any]]:
    """Weight-version spans in the shape of the event; nothing where they are not spans."""
    if not isinstance(value, list):
        return []
    spans = [
        span for span in value if isinstance(span, dict) and isinstance(span.get("version"), str)
    ]
    return [
        {"version": s["version"], "start": s["start"], "end": s["end"]}
        for s in spans
        if type(s.get("start")) is int
        and type(s.get("end")) is int
        and 0 <= s["start"] <= s["end"] < MAX_ID
    ]


def take(answer: dict[str, Any], asked: Asked) -> Captured:
    """Read what Reef needs out of a unary answer, and turn `answer` into what the client would have got without Reef."""
    captured = Captured(integers(answer.get("prompt_token_ids")), [], usage_of(answer.get("usage")))
    choices = answer.get("choices")
    mixed = False
    for position, choice in enumerate(choices if isinstance(choices, list) else ()):
        if not isinstance(choice, dict):
            continue
        own_prompt = integers(
            choice.get("prompt_token_ids")
        )  # completions: vLLM puts them into the choice
        if position == 0 and own_prompt:
            captured.prompt_token_ids = own_prompt
        mixed = mixed or (bool(own_prompt) and own_prompt != captured.prompt_token_ids)
        index, reason = choice.get("index"), choice.get("finish_reason")
        captured.completions.append(
            {
                "index": index if type(index) is int and 0 <= index < MAX_CHOICES else position,
                "finish_reason": reason if isinstance(reason, str) else None,
                "token_ids": integers(choice.get("token_ids")),
                "logprobs": logprobs_in(choice.get("logprobs")),
                "weight_versions": spans_in(choice.get("weight_versions")),
            }
        )
        strip(choice, asked)
    if (
        mixed
    ):  # several prompts in one request: one list of prompt ids would be wrong for all but one
        captured.prompt_token_ids = []
    strip(answer, asked)
    if asked.model is not None:
        answer["model"] = asked.model
    doubt(captured)
    return captured


def doubt(captured: Captured) -> None:
    """Where the engine counts other than it lists, something is missing or too much: without log-probabilities nobody trains on it."""
    if captured.usage is not None and len(captured.completions) == 1:
        only = captured.completions[0]
        if only["token_ids"] and len(only["token_ids"]) != captured.usage["completion_tokens"]:
            only["logprobs"] = []


def encoded(answer: dict[str, Any]) -> bytes | None:
    """An answer as JSON that readers of its event can read; None where it is nested too deeply."""
    try:
        whole = orjson.dumps(answer)
    except orjson.JSONEncodeError:
        return None
    return None if too_deep(whole, answer) else whole


def recorded(answer: dict[str, Any]) -> dict[str, Any] | None:
    """A unary answer as its record has it, the same as a stream's; None where the client's own is that."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        return None
    whole = list(choices)
    for place, choice in enumerate(choices):
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict) and message.get("tool_calls"):
            whole[place] = {**choice, "message": finished(message)}
    return {**answer, "choices": whole} if whole != choices else None


def finished(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the unary answer has it: tool calls in order, without `index`; a call without arguments has `{}`."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    whole = []
    for call in sorted(calls, key=_place):
        if not isinstance(call, dict):
            continue
        entry = {key: value for key, value in call.items() if key != "index"}
        function = entry.get("function")
        if isinstance(function, dict):
            entry["function"] = {**function, "arguments": function.get("arguments") or "{}"}
        whole.append(entry)
    return {**message, "tool_calls": whole}


def _place(call: object) -> int:
    index = call.get("index") if isinstance(call, dict) else None
    return index if isinstance(index, int) else 0


def strip(part: dict[str, Any], asked: Asked) -> None:
    """Take out of an answer, a chunk or a choice what only Reef asked for."""
    if not asked.token_ids:
        part.pop("prompt_token_ids", None)
        part.pop("token_ids", None)
    part.pop("weight_versions", None)
    part.pop("weight_version", None)
    if not asked.logprobs and part.get("logprobs") is not None:
        part["logprobs"] = None
