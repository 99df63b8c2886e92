"""Requests and answers as chains of hashes."""

# Messages are compared by their canonical form (`reefcommon.conversation`). A chain of hashes makes
# "this request continues that answer" a lookup instead of a comparison of texts.

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from reefcommon.conversation import identity, mappings
from reefcommon.events import InferenceRecorded, Sampling

Json = Mapping[str, Any]
# The fields of parts that hold text; a call of a tool and its result are written as text, too.
_SAID = frozenset({"text", "refusal", "thinking", "input", "content"})


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
    """Return the messages of a request as chat messages."""
    if api == "completions":
        prompt = request.get("prompt")
        return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else ()
    return tuple(dict(message) for message in mappings(request.get("messages")))


def answers(response: Json | None, api: str) -> tuple[dict[str, Any], ...]:
    """Return an assistant message for each choice of a response."""
    choices = mappings((response or {}).get("choices"))
    if api == "completions":
        return tuple({"role": "assistant", "content": each.get("text") or ""} for each in choices)
    return tuple(
        {"role": "assistant", **choice["message"]}
        for choice in choices
        if isinstance(choice.get("message"), Mapping)
    )


def is_text(request: Json) -> bool:
    """Return whether a request holds text alone: no pictures, sound or embeddings."""
    contents = (message.get("content") for message in mappings(request.get("messages")))
    parts = (part for content in contents for part in mappings(content))
    return not request.get("prompt_embeds") and all(_SAID & part.keys() for part in parts)


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
