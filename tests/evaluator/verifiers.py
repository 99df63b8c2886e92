"""Verifiers that the evaluator's tests name in a configuration."""

from collections.abc import Callable
from typing import Any

TASKS = ["one", {"prompt": "two", "answer": "2"}]


def length(_task: Any, answer: str) -> float:
    """Longer is better."""
    return float(len(answer))


def broken(_task: Any, _answer: str) -> float:
    """Raises, as a verifier with a bug does."""
    raise ZeroDivisionError("no")


def nothing(_task: Any, _answer: str) -> None:
    """Forgets to return."""


def tasks() -> list[Any]:
    """Tasks made at the start."""
    return [*TASKS, [{"role": "user", "content": "three"}]]


def of_texts(task: Any, answer: str) -> float:
    """Knows tasks that are prompts, and no others."""
    return float(len(task.strip()) * 0 + len(answer))


WORDS = "short"


def shortness(_task: Any, answer: str) -> tuple[float, str]:
    """Shorter is better, with words about it."""
    return -float(len(answer)), WORDS


def slow(task: Any, answer: str) -> float:
    """As slow as the test says."""
    return SLOW(task, answer)


SLOW: Callable[[Any, str], float] = length
