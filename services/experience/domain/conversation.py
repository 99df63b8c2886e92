"""Requests and answers as chains of hashes."""

# Messages are compared by their canonical form (`reefcommon.conversation`). A chain of hashes makes
# "this request continues that answer" a lookup instead of a comparison of texts.

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from reefcommon.conversation import identity, mappings
from reefcommon.events import InferenceRecorded, Sampling

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A request and its answers as hashes.

    prefixes  of each beginning that ends in an assistant's message, longest first
    request   of all its messages; empty if there are none
    tails     of the request followed by each answer
    """

    prefixes: tuple[str, ...]
    request: str
    tails: tuple[str, ...]


def fingerprint(
    request: Json, response: Json | None, api: str, *, shard: bytes = b""
) -> Fingerprint:
    """Return the fingerprint of an exchange; those of two `shard`s differ. Never raises."""
    # A message of an unreadable form counts as an empty message.
    messages = request_messages(request, api)
    chain, prefixes = hashlib.blake2b(shard, digest_size=16), []
    for number, message in enumerate(messages, 1):
        chain.update(_spelled(message))
        if number < len(messages) and message.get("role") == "assistant":
            prefixes.append(chain.hexdigest())
    if not messages:
        return Fingerprint((), "", ())
    tails = []
    for answer in answers(response, api):
        tail = chain.copy()
        tail.update(_spelled(answer))
        tails.append(tail.hexdigest())
    return Fingerprint(tuple(reversed(prefixes)), chain.hexdigest(), tuple(dict.fromkeys(tails)))


def request_messages(request: Json, api: str) -> tuple[dict[str, Any], ...]:
    """Return the messages of a request of any API as chat messages."""
    if api == "completions":
        prompt = request.get("prompt")
        return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else ()
    if api == "responses":
        return (*_as_system(request.get("instructions")), *_responses_input(request.get("input")))
    system = _as_system(request.get("system")) if api == "messages" else ()
    return (*system, *(dict(message) for message in mappings(request.get("messages"))))


def answers(response: Json | None, api: str) -> tuple[dict[str, Any], ...]:
    """Return an assistant message for each choice of a response."""
    if response is None:
        return ()
    if api == "messages":
        content = response.get("content")
        return ({"role": "assistant", "content": content},) if content else ()
    if api == "responses":
        output = tuple(mappings(response.get("output")))
        return (_responses_answer(output),) if output else ()
    choices = tuple(mappings(response.get("choices")))
    if api == "completions":
        return tuple({"role": "assistant", "content": each.get("text") or ""} for each in choices)
    return tuple(
        {"role": "assistant", **choice["message"]}
        for choice in choices
        if isinstance(choice.get("message"), Mapping)
    )


def sampling(event: InferenceRecorded) -> Sampling:
    """Return the sampling parameters of an exchange."""
    # Events of before the sampling was recorded have the requested temperature alone.
    if event.sampling is not None:
        return event.sampling
    value = (event.request or {}).get("temperature")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Sampling(temperature=float(value))
    return Sampling()


def _spelled(message: Json) -> bytes:
    # JSON ends where it ends: a chain of messages can be read in one way only.
    return orjson.dumps(identity(message))


def _as_system(text: object) -> tuple[dict[str, Any], ...]:
    return ({"role": "system", "content": text},) if text else ()


def _responses_input(value: object) -> tuple[dict[str, Any], ...]:
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    messages: list[dict[str, Any]] = []
    for item in mappings(value):
        if item.get("type") == "function_call":
            function = {name: item.get(name, "") for name in ("name", "arguments")}
            call = {"type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif item.get("type") == "function_call_output":
            messages.append({"role": "tool", "content": item.get("output", "")})
        elif "role" in item:
            messages.append({"role": item["role"], "content": item.get("content", "")})
    return tuple(messages)


def _responses_answer(output: Sequence[Json]) -> dict[str, Any]:
    role = {"role": "assistant"}
    items = [role | dict(item) if item.get("type") == "message" else item for item in output]
    merged = _responses_input(items)
    return merged[0] if merged else {"role": "assistant", "content": ""}
