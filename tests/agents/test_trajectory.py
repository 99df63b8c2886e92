"""A run of Pi, read from its session log."""

import json

from reefcommon.harness.agent import find_agent, runs_episodes
from reefcommon.harness.trajectory import Step, told

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


def test_only_the_first_and_last_lines_of_a_long_run_are_kept() -> None:
    lines = told([Step("tool", f"{number} " + "x" * 500) for number in range(100)])
    assert len(lines) == 16
    assert max(map(len, lines)) == 160
    assert lines[10] == "… 85 more …"
