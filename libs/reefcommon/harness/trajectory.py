"""An agent's run on a task, as its verifier and people read it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reefcommon.surrogates import whole

MAX_LINE_CHARS = 160
FIRST_LINES, LAST_LINES = 10, 5


@dataclass(frozen=True, slots=True)
class Step:
    """A message of a run. `calls`: the tools that an assistant called, with their arguments."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The session log of a run. `failure`: why the agent could not work; it is no score then."""

    steps: tuple[Step, ...] = ()
    failure: str = ""

    @property
    def answer(self) -> str:
        """The last words of the agent."""
        said = (step.text for step in reversed(self.steps) if step.role == "assistant")
        return next(filter(None, said), "")


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """The end of an episode, for the verifier.

    `files`: those of the working folder that are short text, by path. `status`: `failed` if
    the agent ended with an exit code other than 0, `ok`, or the bound that stopped it.
    """

    status: Literal["ok", "failed", "timeout", "output", "memory", "processes"]
    text: str
    steps: tuple[Step, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    seconds: float = 0.0
    requests: int = 0

    @property
    def calls(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """The tools that the agent called, in order."""
        return tuple(call for step in self.steps for call in step.calls)


def told(steps: Iterable[Step]) -> tuple[str, ...]:
    """Return the first and the last lines of a run, each of bounded length."""
    lines = [line for step in steps for line in _lines(step)]
    if len(lines) > FIRST_LINES + LAST_LINES:
        left_out = len(lines) - FIRST_LINES - LAST_LINES
        lines[FIRST_LINES:-LAST_LINES] = [f"… {left_out} more …"]
    return tuple(lines)


def _lines(step: Step) -> Iterator[str]:
    if step.text.strip():
        yield _short(f"{step.role}: {step.text}")
    for name, arguments in step.calls:
        given = ", ".join(f"{key}={value}" for key, value in arguments.items())
        yield _short(f"calls {name}({given})")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"


def text_of(content: Any) -> str:
    """Return the text of a content: itself, or its parts' texts."""
    if isinstance(content, str):
        return content
    parts = [part for part in content or () if isinstance(part, dict)]
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def json_lines(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a log in JSON lines; other lines, and a torn last one, are left out."""
    for line in text.split("\n"):  # `splitlines` would cut texts at their own separators
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield whole(value) if "\\ud" in line.lower() else value
