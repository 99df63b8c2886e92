"""What a person sees while the stack starts: lines in a pipe, a table on a terminal, objects as JSON."""

import io
import json

from rich.console import Console

from reefstack.restart_policy import StackEvent
from reefstack.view import JsonView, LiveView, PlainView, view_for

EVENTS = [
    StackEvent("seaweedfs", "starting"),
    StackEvent("seaweedfs", "waiting", "not listening yet"),
    StackEvent("model", "progress", "reading weights", 0.1),
    StackEvent("model", "progress", "reading weights", 0.2),
    StackEvent("model", "progress", "reading weights", 0.6),
    StackEvent("seaweedfs", "ready", "http://127.0.0.1:8907"),
    StackEvent("engine", "died", "exit code 1"),
]


def shown(view: PlainView | LiveView, out: io.StringIO) -> str:
    with view:
        for event in EVENTS:
            view(event)
    return out.getvalue()


def test_a_pipe_gets_one_line_an_event_and_progress_in_quarters() -> None:
    out = io.StringIO()
    view = view_for(Console(file=out, force_terminal=False, width=40))
    assert isinstance(view, PlainView)
    lines = [line.split("s  ", 1)[1].split() for line in shown(view, out).splitlines()]
    assert [line[:2] for line in lines] == [
        ["seaweedfs", "starting"],
        ["model", "10%"],
        ["model", "60%"],
        ["seaweedfs", "ready"],
        ["engine", "died"],
    ]


def test_a_terminal_gets_a_table_with_what_is_ready_what_waits_and_what_died() -> None:
    out = io.StringIO()
    view = view_for(Console(file=out, force_terminal=True, width=100))
    assert isinstance(view, LiveView)
    text = shown(view, out)
    assert "✓" in text
    assert "1 of 3 ready" in text
    assert "reading weights" in text
    assert "exit code 1" in text
    view(StackEvent("gateway", "note", "8900 is taken by python (pid 1): using 16879"))
    assert out.getvalue().rstrip().endswith("8900 is taken by python (pid 1): using 16879")
    view(StackEvent("engine", "restarting"))
    assert out.getvalue().rstrip().endswith("restarting"), (
        "once up, events are lines below the table"
    )


def test_the_end_is_told_without_how_far_the_start_had_come() -> None:
    out = io.StringIO()
    view = view_for(Console(file=out, force_terminal=True, width=100))
    assert isinstance(view, LiveView)
    with view:
        for event in (
            StackEvent("tansu", "ready"),
            StackEvent("gateway", "starting"),
            StackEvent("tansu", "stopping"),
        ):
            view(event)
        told = Console(file=io.StringIO(), width=100)
        told.print(view.render())
        view(StackEvent("tansu", "stopped"))
    assert "stopping, in order: 1 to go" in told.file.getvalue()  # type: ignore[attr-defined]
    assert "ready" not in out.getvalue().rsplit("tansu", 1)[1]
    pipe = io.StringIO()
    plain = view_for(Console(file=pipe, force_terminal=False, width=100))
    plain(StackEvent("tansu", "stopping"))
    assert "tansu       stopping" in pipe.getvalue()


def test_stopped_before_anything_began_shows_no_bar() -> None:
    out = io.StringIO()
    with view_for(Console(file=out, force_terminal=True, width=100)):
        pass
    assert "ready" not in out.getvalue()


def test_json_lines_carry_every_event_whole() -> None:
    out = io.StringIO()
    view = view_for(Console(file=out, force_terminal=False, width=20), as_json=True)
    assert isinstance(view, JsonView)
    rows = [json.loads(line) for line in shown(view, out).splitlines()]
    assert [row["kind"] for row in rows] == [event.kind for event in EVENTS]
    assert rows[2]["fraction"] == 0.1
