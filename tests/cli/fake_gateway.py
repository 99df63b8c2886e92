"""What the tests of the commands share: a gateway that answers from a table, and the command itself."""

from dataclasses import dataclass, field
from typing import Any

import psutil
from typer.testing import CliRunner

from reefcli.main import cli
from reefstack.state import StackState

REJECTED = [
    {
        "event_id": "e-1",
        "at": "2026-01-01T00:00:00Z",
        "scenario": "default",
        "outcome": "rejected",
        "reason": "the head scored higher",
        "candidate_id": "cand-1",
        "command_id": None,
        "evaluation": {"candidate_score": 0.25, "head_score": 0.5},
    }
]


def release(
    name: str, *, current: bool = False, parent: str | None = None, **other: Any
) -> dict[str, Any]:
    row = {
        "release_id": name,
        "scenario": "default",
        "sequence": 1,
        "parent_id": parent,
        "kind": "lora",
        "content_id": "c-" + name,
        "operation": "training",
        "load_id": "i:1",
        "adapter": None,
        "metrics": {"reward": 0.5},
        "evaluation": None,
        "created_at": "2026-01-01T00:00:00Z",
        "current": current,
        "pending": False,
    }
    return {**row, **other}


CHAIN = [
    release(
        "rel-2",
        current=True,
        parent="rel-1",
        evaluation={"candidate_score": 0.9125, "head_score": 0.5},
    ),
    release("rel-1", operation="creation", kind="base"),
]


@dataclass
class FakeGateway:
    """Answers from a table and remembers what it was asked."""

    url: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, str, Any]] = field(default_factory=list)


def reef(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout if code == 0 else result.output


def this_process(**facts: Any) -> StackState:
    me = psutil.Process()
    return StackState(pid=me.pid, created=me.create_time(), started_at=0.0, **facts)
