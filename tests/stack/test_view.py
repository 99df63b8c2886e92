"""What a person sees while the stack starts: lines in a pipe, a table on a terminal, objects as JSON."""

import io
import json
import time

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


def test_a_pipe_is_told_now_and_then_what_is_still_awaited() -> None:
    out = io.StringIO()
    view = PlainView(Console(file=out, width=40), every_s=0.05)
    with view:
        for name, kind, text in (
            ("tansu", "planned", ""),
            ("engine", "planned", ""),
            ("tansu", "starting", ""),
            ("tansu", "ready", ""),
            ("engine", "starting", ""),
            ("engine", "waiting", "waits for the model\n503 {}"),
            ("gateway", "planned", ""),
        ):
            view(StackEvent(name, kind, text))
        deadline = time.monotonic() + 10
        while "awaited" not in out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    awaited = next(line for line in out.getvalue().splitlines() if "awaited" in line)
    assert awaited.endswith("engine (waits for the model), gateway (not started yet)")
    time.sleep(0.1)  # a round that had begun
    told = out.getvalue()
    time.sleep(0.2)
    assert out.getvalue() == told, "the start is over"


def test_the_table_counts_the_programs_that_have_not_begun() -> None:
    view = LiveView(Console(file=io.StringIO(), force_terminal=True, width=100))
    with view:
        for name in ("tansu", "engine", "gateway"):
            view(StackEvent(name, "planned"))
        view(StackEvent("tansu", "ready"))
        shown = Console(file=io.StringIO(), width=100)
        shown.print(view.render())
    text = shown.file.getvalue()
    assert "1 of 3 ready" in text
    assert text.count("not started yet") == 2


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
