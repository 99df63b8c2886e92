"""Held-out tasks and the score of an answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, SupportsFloat

from reefcommon.statistics import independent_seed

Verifier = Callable[[Any, str], Any]
"""(task as configured, text of the answer) -> finite number, higher is better."""

_LABEL_CHARS = 60


class BadTask(ValueError):
    """An item is not a task. The message says which forms are allowed."""


class BadScore(ValueError): ...


@dataclass(frozen=True, slots=True)
class Task:
    """A held-out task. The verifier receives `given`, the item as configured."""

    name: str
    messages: tuple[Mapping[str, Any], ...]
    given: Any


def as_task(item: Any, index: int) -> Task:
    """Read a prompt, a list of messages, or a mapping with `messages` or `prompt`.

    A mapping may have an `id`, and keys for the verifier.

    Raises:
        BadTask: another form.
    """
    body: Any = item
    name = ""
    if isinstance(item, Mapping):
        name = str(item.get("id", ""))
        body = item.get("messages", item.get("prompt"))
    if isinstance(body, str) and body.strip():
        messages: tuple[Mapping[str, Any], ...] = ({"role": "user", "content": body},)
    elif _is_conversation(body):
        messages = tuple(body)
    else:
        forms = "a prompt, a list of messages, or a mapping with `prompt` or `messages`"
        raise BadTask(f"task {index} must be {forms}; got {item!r:.120}")
    return Task(name or f"{index}: {_label(messages)}", messages, item)


def as_score(value: Any) -> float:
    """Read a verifier's result; True and False are 1 and 0.

    Raises:
        BadScore: not a finite number.
    """
    # Not only int and float: verifiers that use numpy or torch give scalars of their own.
    if not isinstance(value, SupportsFloat) or not isfinite(value):
        raise BadScore(f"the verifier gave {value!r:.80}, not a finite number")
    return float(value)


def seed_of(candidate_id: str, task: str) -> int:
    """Return the seed with which both sides of a pair sample."""
    # It is new for every candidate, and the same if the candidate is evaluated again.
    # The node draws the choices of one request from independent streams.
    return independent_seed("evaluation", candidate_id, task)


def _is_conversation(body: Any) -> bool:
    if not isinstance(body, Sequence) or isinstance(body, str) or not body:
        return False
    return all(isinstance(part, Mapping) and isinstance(part.get("role"), str) for part in body)


def _label(messages: Sequence[Mapping[str, Any]]) -> str:
    text = " ".join(str(messages[-1].get("content", "")).split())
    return text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…"
