"""A verifier's calls: bounded in time, in threads of their own, failures are never scores."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from reefcommon.evaluator import MAX_WORDS, BadScore, Evaluator, Scored, as_scored, as_task
from reefcommon.recipe_context import Outcome
from reefkit.verifier import Verifier, VerifierFailed

TASK = as_task({"id": "t", "prompt": "p", "answer": "4"}, 0)


@pytest.mark.parametrize(
    ("value", "scored"),
    [
        (1, Scored(1.0)),
        (True, Scored(1.0)),
        ((0.5, " half \n"), Scored(0.5, "half")),
        ((0.5, "w" * 600), Scored(0.5, "w" * (MAX_WORDS - 1) + "…")),
    ],
)
def test_a_number_or_a_number_with_words(value: Any, scored: Scored) -> None:
    assert as_scored(value) == scored


@pytest.mark.parametrize(
    "value", [None, float("nan"), (1.0,), (1.0, "a", "b"), (float("inf"), "w"), (1.0, 2), "1"]
)
def test_anything_else_is_no_score(value: Any) -> None:
    with pytest.raises(BadScore, match="the verifier gave"):
        as_scored(value)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("print(1)", "print(1)"),
        ("Like this:\n```python\nprint(1)\n```\n", "print(1)\n"),
        ("```\na\n```\nbetter:\n``` py\nb\nc\n```", "b\nc\n"),
        ("```python\nunfinished", "```python\nunfinished"),
    ],
)
def test_the_last_block_of_an_answer_is_its_program(answer: str, program: str) -> None:
    assert Evaluator().program({}, answer) == program


async def test_the_verifier_gets_a_copy_of_the_task() -> None:
    def greedy(task: dict[str, Any], answer: str) -> float:
        return float(task.pop("answer") == answer)

    verifier = Verifier("s", greedy)
    for _ in range(2):
        assert await verifier.scores(TASK, ["4"]) == [Scored(1.0)]


async def test_a_call_that_hangs_is_ended_and_costs_one_thread() -> None:
    hold, calls = threading.Event(), []

    def slow(_task: Any, _answer: str) -> float:
        calls.append(1)
        hold.wait(30)
        return 1.0

    verifier = Verifier("s", slow, limit_s=0.2)
    started = time.monotonic()
    with pytest.raises(VerifierFailed, match="takes longer than"):
        await verifier.scores(TASK, ["a"])
    for _ in range(5):
        with pytest.raises(VerifierFailed, match="has not returned"):
            await verifier.scores(TASK, ["a"])
    assert len(calls) == 1
    assert time.monotonic() - started < 10
    hold.set()
    while any(thread.name == "s: verifier" for thread in threading.enumerate()):
        time.sleep(0.01)
    assert await verifier.scores(TASK, ["a"]) == [Scored(1.0)], "it goes on when it has returned"


async def test_a_failing_judge_of_files_says_where(tmp_path: Path) -> None:
    class Files(Evaluator):
        def judge_files(self, directory: Path) -> float:
            return float((directory / "number").read_text())

    verifier = Verifier("s", None, Files())
    with pytest.raises(VerifierFailed, match=r"FileNotFoundError: .*number.*\(test_verifier.py:"):
        await verifier.files(tmp_path)
    (tmp_path / "number").write_text("2.5")
    assert await verifier.files(tmp_path) == Scored(2.5)
    with pytest.raises(VerifierFailed, match="no function scores"):
        await verifier.scores(TASK, ["a"])


async def test_a_program_is_found_beside_the_loop_and_in_time() -> None:
    hold, threads = threading.Event(), []

    class Slow(Evaluator):
        runner = "program"

        def program(self, task: Any, answer: str) -> str:
            threads.append(threading.current_thread())
            if answer == "exit":
                raise SystemExit(3)
            hold.wait(10)
            return answer

    async def run(_program: str, **_: Any) -> Outcome:
        raise AssertionError("there is no program")

    verifier = Verifier("s", lambda *_: 1.0, Slow(), limit_s=0.2, run=run)
    with pytest.raises(VerifierFailed, match=r"no program in an answer: .*SystemExit: 3"):
        await verifier.scores(TASK, ["exit"])
    with pytest.raises(VerifierFailed, match="takes longer than"):
        await verifier.scores(TASK, ["slow"])
    hold.set()
    assert threading.main_thread() not in threads
