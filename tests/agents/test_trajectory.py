"""A run of Pi, read from its session log."""

import json

from reefcommon.harness.agent import find_agent, runs_episodes
from reefcommon.harness.trajectory import Step, json_lines, told

PI = find_agent("pi")


def log(*messages: dict) -> str:
    rows = [
        {"type": "session", "version": 3},
        *({"type": "message", "message": m} for m in messages),
    ]
    return "\n".join(map(json.dumps, rows)) + '\n{"type": "mess'


USER = {"role": "user", "content": [{"type": "text", "text": "label it"}]}
CALL = {"type": "toolCall", "id": "c1", "name": "write", "arguments": {"path": "a.txt"}}
CALLED = {"role": "assistant", "content": [{"type": "text", "text": "I write."}, CALL]}
RESULT = {"role": "toolResult", "content": [{"type": "text", "text": "written"}]}
SAID = {"role": "assistant", "content": [{"type": "text", "text": "Done."}], "stopReason": "stop"}


def test_a_run_has_its_calls_and_its_last_words() -> None:
    assert runs_episodes(PI)
    run = PI.trajectory(log({"role": "system", "content": "x"}, USER, CALLED, RESULT, SAID), "")
    assert (run.failure, run.answer) == ("", "Done.")
    assert run.steps[1] == Step("assistant", "I write.", (("write", {"path": "a.txt"}),))
    assert told(run.steps) == (
        "user: label it", "assistant: I write.", "calls write(path=a.txt)",
        "tool: written", "assistant: Done.",
    )  # fmt: skip


def test_an_error_of_the_model_is_a_failure_and_no_answer() -> None:
    failed = {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "refused"}
    assert PI.trajectory(log(USER, failed), "").failure == "refused"
    assert "no answer" in PI.trajectory(log(USER), "").failure
    assert "no answer" in PI.trajectory("", "not json").failure
    assert PI.trajectory(log(USER, failed, SAID), "").failure == "", "it was tried again"


def lines(*rows: dict) -> str:
    return "\n".join(map(json.dumps, rows))


def test_a_run_of_claude_code() -> None:
    """Rows of 2.1.332, shortened."""

    def row(role: str, *parts: object, **more: object) -> dict:
        return {
            "type": role,
            "isSidechain": False,
            "message": {"role": role, "content": parts},
            **more,
        }

    use = {"type": "tool_use", "id": "c", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "1", "is_error": False}
    rows = [
        {"type": "queue-operation", "content": "Write."},
        {"type": "user", "message": {"role": "user", "content": "Write."}},
        {"parentUuid": None, "type": "attachment", "attachment": {}},
        row("assistant", {"type": "text", "text": "Let me."}),
        row("assistant", use),
        row("user", result),
        row("assistant", {"type": "text", "text": "A helper's."}, isSidechain=True),
        row("assistant", {"type": "text", "text": "Done."}),
    ]
    claude = find_agent("claude-code")
    run = claude.trajectory(lines(*rows), lines({"type": "result", "is_error": False}))
    assert (run.failure, run.answer) == ("", "Done.")
    assert run.steps[2:4] == (
        Step("assistant", "", (("Bash", {"command": "ls"}),)),
        Step("tool", "1"),
    )
    failed = row("assistant", {"type": "text", "text": "API Error: 500"}, isApiErrorMessage=True)
    assert claude.trajectory(lines(*rows, failed), "").failure == "API Error: 500"
    ended = lines({"type": "result", "is_error": True, "result": "no more turns"})
    assert claude.trajectory(lines(*rows), ended).failure == "no more turns"
    assert "no answer" in claude.trajectory("", "").failure


def test_a_run_of_codex() -> None:
    """Rows of 0.171.0, shortened."""

    def item(kind: str, **more: object) -> dict:
        return {"type": "response_item", "payload": {"type": kind, **more}}

    def text(role: str, said: str) -> dict:
        return item("message", role=role, content=[{"type": "output_text", "text": said}])

    rows = [
        {"type": "session_meta", "payload": {}},
        text("developer", "Skills."),
        text("user", "Write."),
        item("function_call", name="exec_command", arguments='{"cmd": "ls"}'),
        item("function_call", name="exec_command", arguments="{"),
        item("function_call_output", output="exit 0"),
        text("assistant", "Done."),
    ]
    codex = find_agent("codex")
    run = codex.trajectory(lines(*rows), lines({"type": "turn.completed"}))
    assert (run.failure, run.answer) == ("", "Done.")
    assert [call for step in run.steps for call in step.calls] == [
        ("exec_command", {"cmd": "ls"}), ("exec_command", {}),
    ]  # fmt: skip
    assert [step.role for step in run.steps] == [
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
    failed = lines({"type": "turn.failed", "error": {"message": "stream disconnected"}})
    assert codex.trajectory(lines(*rows), failed).failure == "stream disconnected"
    assert "no answer" in codex.trajectory("", "").failure


def test_only_the_first_and_last_lines_of_a_long_run_are_kept() -> None:
    lines = told([Step("tool", f"{number} " + "x" * 500) for number in range(100)])
    assert len(lines) == 16
    assert max(map(len, lines)) == 160
    assert lines[10] == "… 85 more …"


def test_separators_within_a_text_end_no_line_of_a_log() -> None:
    """Node writes them as they are."""
    texts = ["a\u2028b\u2029c\u0085d", "e"]
    log = "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    assert [row["text"] for row in json_lines(log)] == texts
