"""A recipe's own evaluation: held-out tasks, a verifier with words, the worth of files."""

# candidate --runner--> outcome of a task --score()--> (number, words) --policy--> verdict
# solution  --judge_files()--> (number, words) --strictly better--> verdict
#
# `serve.yaml` wins: its `evaluation.tasks` and `evaluation.score` each replace the recipe's.

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from reefcommon.events import Policy
from reefcommon.recipe_context import Limits

Score = float | tuple[float, str]
"""A finite number, higher is better; perhaps with words."""

ScoreFunction = Callable[[Any, Any], Any]
"""(task as given, outcome) -> Score."""

Runner = Literal["chat", "program", "agent"]

MAX_WORDS = 500
"""Characters of a verifier's words that are kept."""

_LABEL_CHARS = 60
_FENCED = re.compile(r"^```[ \t]*\w*[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


class BadTask(ValueError):
    """An item is not a task. The message says which forms are allowed."""


class BadScore(ValueError): ...


class Evaluator:
    """Judges the candidates of a recipe. It implements the parts that its kinds need."""

    # Its methods run in threads, with a time limit.

    runner: Runner = "chat"
    # The outcome of an answer: the text itself, or the end of the `program` in it. `agent`: the end
    # of an agent's run on the task (`reefcommon.harness.trajectory.AgentOutcome`).
    policy: Policy | None = None
    # Compares tasks, or held-out samples; None: the default.
    exact: bool = False
    # `judge_files` gives equal files the same number, always. It is checked by a second call.
    least: float = -inf
    # A solution whose number is not above this is rejected, also the first.
    limits: Limits = Limits()
    # Bounds of a program.

    def tasks(self, scenario: str) -> Sequence[Any]:
        """Return the held-out tasks, in the forms of `evaluation.tasks`."""
        raise NotImplementedError

    def program(self, task: Any, answer: str) -> str:  # noqa: ARG002 - others may need the task
        """Return the program of an answer: the last fenced block, if any."""
        blocks: list[str] = _FENCED.findall(answer)
        return blocks[-1] if blocks else answer

    def score(self, task: Any, outcome: Any) -> Score:
        """Score a text (`chat`), `Outcome` (`program`) or `AgentOutcome`. Higher is better."""
        raise NotImplementedError

    def judge_files(self, directory: Path) -> Score:
        """Score a solution by its files. Higher is better."""
        raise NotImplementedError


def implements(evaluator: Evaluator, method: Literal["tasks", "score", "judge_files"]) -> bool:
    return getattr(type(evaluator), method) is not getattr(Evaluator, method)


@dataclass(frozen=True, slots=True)
class Task:
    """A held-out task. The verifier receives `given`, the item as configured."""

    name: str
    messages: tuple[Mapping[str, Any], ...]
    given: Any


@dataclass(frozen=True, slots=True)
class Scored:
    """A verifier's result. `words` are bounded."""

    number: float
    words: str = ""


def as_tasks(items: Sequence[Any]) -> tuple[Task, ...]:
    """Raises BadTask, also if two tasks have the same name."""
    tasks = tuple(as_task(item, index) for index, item in enumerate(items))
    names = [task.name for task in tasks]
    if len(set(names)) != len(names):
        raise BadTask(f"two tasks are called {max(names, key=names.count)!r}")
    return tasks


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


def as_scored(value: Any) -> Scored:
    """Read a verifier's result: a number, or (number, words). True and False are 1 and 0.

    Raises:
        BadScore: another form, or the number is not finite.
    """
    number, words = value if isinstance(value, tuple) and len(value) == 2 else (value, "")
    # Not only int and float: verifiers that use numpy or torch give scalars of their own.
    if not isinstance(number, SupportsFloat) or not isfinite(number):
        raise BadScore(f"the verifier gave {value!r:.80}, not a finite number")
    if not isinstance(words, str):
        raise BadScore(f"the verifier gave the words {words!r:.80}, which are not a text")
    return Scored(float(number), bounded_words(words))


def bounded_words(words: str) -> str:
    words = words.strip()
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 1] + "…"


def _is_conversation(body: Any) -> bool:
    if not isinstance(body, Sequence) or isinstance(body, str) or not body:
        return False
    return all(isinstance(part, Mapping) and isinstance(part.get("role"), str) for part in body)


def _label(messages: Sequence[Mapping[str, Any]]) -> str:
    text = " ".join(str(messages[-1].get("content", "")).split())
    return text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…"
