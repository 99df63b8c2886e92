"""Held-out tasks: what the configuration may give as one, and what an episode needs of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from reefcommon.ids import digest

_LABEL_CHARS = 60


class BadTask(ValueError):
    """What was given is not a task. The message says what is one."""


class BadScore(ValueError):
    """A verifier gave something else than a finite number."""


@dataclass(frozen=True, slots=True)
class Task:
    """One held-out task. `given` is what the verifier gets: the item as it was configured."""

    name: str
    messages: tuple[Mapping[str, Any], ...]
    given: Any


def as_task(item: Any, index: int) -> Task:
    """A prompt, a list of messages, or a mapping with `messages` or `prompt` (and `id`, and whatever the verifier wants to find there).

    Raises:
        BadTask: it is none of these.
    """
    body: Any = item
    name = ""
    if isinstance(item, Mapping):
        name = str(item.get("id", ""))
        body = item.get("messages", item.get("prompt"))
    if isinstance(body, str) and body.strip():
        messages: tuple[Mapping[str, Any], ...] = ({"role": "user", "content": body},)
    elif (
        isinstance(body, Sequence)
        and not isinstance(body, str)
        and body
        and all(_is_message(part) for part in body)
    ):
        messages = tuple(body)
    else:
        raise BadTask(
            f"task {index} must be a prompt, a list of messages, or a mapping with `prompt` or `messages`; got {item!r:.120}"
        )
    return Task(name or f"{index}: {_label(messages)}", messages, item)


def as_score(value: Any) -> float:
    """A verifier's answer as a score; True and False are 1 and 0.

    Raises:
        BadScore: it is not a finite number.
    """
    if not isinstance(value, (int, float)) or not isfinite(value):
        raise BadScore(f"the verifier gave {value!r:.80}, not a finite number")
    return float(value)


def seed_of(candidate_id: str, task: str) -> int:
    """The seed that both sides of a pair sample with: new for every candidate, the same when it is evaluated again."""
    return int(digest("seed", candidate_id, task, length=7), 16)


def _is_message(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("role"), str)


def _label(messages: Sequence[Mapping[str, Any]]) -> str:
    text = " ".join(str(messages[-1].get("content", "")).split())
    return text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…"
