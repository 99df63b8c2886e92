"""An agent on a task: a good run, runs that could not be made, bounds, and strays."""

import asyncio
import json
import os
import socket
import threading
import time
from pathlib import Path

import aiohttp
import pytest

from reefcommon.errors import Transient, Unavailable
from reefcommon.events import AgentRun
from reefcommon.harness.trajectory import told
from reefcommon.harness.tree import Entry
from reefkit.episodes.process import Bounds
from reefkit.episodes.relay import Relay, Upstream, running
from reefkit.episodes.runner import AgentRunner
from tests.episodes.conftest import ISOLATIONS, Model, left_over, runner_at, seat, task
from tests.fakes.priorities import may_run_ahead, policies_during

RULE = (Entry("r", "rules", {"text": "Write the label."}),)


async def test_a_run_sees_the_harness_and_leaves_its_files_to_the_verifier(
    model: Model, runner: AgentRunner
) -> None:
    model.answer = lambda messages: (
        "write label.txt OSLO\nDone." if "Write the label." in messages[0]["content"] else "No."
    )
    done = await runner.run(task(files={"order.txt": "12"}), RULE, seat(model))
    assert (done.status, done.exit_code, done.text, done.requests) == ("ok", 0, "Done.", 1)
    assert done.files == {"label.txt": "OSLO", "order.txt": "12"}
    assert done.calls == (("write", {"given": "label.txt OSLO"}),)
    bare = await runner.run(task(), (), seat(model))
    assert (bare.text, bare.files) == ("No.", {})
    assert list(runner.home.iterdir()) == []


async def test_an_agent_is_no_user_and_never_has_reefs_token(
    model: Model, runner: AgentRunner
) -> None:
    model.answer = lambda _messages: "environment"
    done = await runner.run(task(), (), seat(model))
    _, headers, body = model.asked[0]
    assert headers["authorization"] == "Bearer reefs"
    assert headers["x-reef-scenario"] == "default", "the agent's own is dropped"
    assert body["priority"] == 10
    seen = json.loads(done.steps[-1].text)
    assert seen["REEF_TOKEN"] not in ("", "reefs")
    assert seen["HOME"].startswith(str(runner.home))
    assert "VIRTUAL_ENV" not in seen
    assert "PYTHONPATH" not in seen


@pytest.mark.parametrize("answer", [500, 429, 400])
async def test_a_model_that_does_not_answer_is_no_score(
    model: Model, runner: AgentRunner, answer: int
) -> None:
    model.answer = lambda _messages: answer
    with pytest.raises(Transient, match=str(answer)):
        await runner.run(task(), (), seat(model))
    assert list(runner.home.iterdir()) == []


@pytest.mark.parametrize(("later", "score"), [(503, False), (429, False), (400, True)])
async def test_time_that_went_by_without_the_model_is_no_score(
    model: Model, tmp_path: Path, later: int, score: bool
) -> None:
    """Agents wait and ask again. What they ask wrongly is their own."""
    model.answer = lambda _messages: later if len(model.asked) > 1 else "insist"
    running = runner_at(tmp_path, timeout_s=2.0).run(task(), (), seat(model))
    if score:
        assert (await running).status == "timeout"
    else:
        with pytest.raises(Transient, match=f"go on answering: {later}"):
            await running


async def test_a_program_that_cannot_start_is_no_score(model: Model, tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.write_text("#!/no/such/program\n")
    program.chmod(0o755)
    with pytest.raises(Transient, match="cannot be started: FileNotFoundError"):
        await runner_at(tmp_path, binary=program).run(task(), (), seat(model))
    program.write_text("#!/bin/sh\necho 'out of order' >&2\nexit 3\n")
    with pytest.raises(Transient, match="no answer of the model: there is no log"):
        await runner_at(tmp_path, binary=program).run(task(), (), seat(model))
    with pytest.raises(Unavailable, match="is no program"):
        await runner_at(tmp_path, binary=tmp_path / "none").run(task(), (), seat(model))


async def test_an_exit_code_is_an_outcome(model: Model, runner: AgentRunner) -> None:
    model.answer = lambda _messages: "I give up.\nexit 3"
    done = await runner.run(task(), (), seat(model))
    assert (done.status, done.exit_code) == ("failed", 3)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(("answer", "status"), [("loop", "timeout"), ("flood", "output")])
async def test_an_endless_run_is_stopped_and_told(
    model: Model, tmp_path: Path, answer: str, status: str, isolation: str
) -> None:
    runner = runner_at(tmp_path, isolation=isolation, timeout_s=2.0 if answer == "loop" else 60)
    runner.bounds = Bounds(runner.section.timeout_s, output_bytes=1_000_000)
    model.answer = lambda _messages: f"write a.txt b\nfork\n{answer}"
    done = await runner.run(task(), (), seat(model))
    assert (done.status, done.exit_code, done.files) == (status, None, {"a.txt": "b"})
    assert left_over() == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("breed 6\nDone.", "ok"),
        ("breed 60\nloop", "processes"),
        ("eat 100\nDone.", "ok"),
        ("eat 400\nloop", "memory"),
    ],
)
async def test_a_run_has_a_bound_on_its_processes_and_its_memory(
    model: Model, tmp_path: Path, answer: str, status: str, isolation: str
) -> None:
    bounds = {"memory_mb": 300, "processes": 30}
    runner = runner_at(tmp_path, isolation=isolation, timeout_s=30.0, **bounds)
    model.answer = lambda _messages: f"write a.txt b\nfork\n{answer}"
    done = await runner.run(task(), (), seat(model))
    assert (done.status, done.files) == (status, {"a.txt": "b"})
    assert left_over() == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_what_counts_an_agents_processes_runs_ahead_of_them(
    model: Model, tmp_path: Path, isolation: str
) -> None:
    model.answer = lambda _messages: "fork\nloop"
    runner = runner_at(tmp_path, isolation=isolation, timeout_s=3.0)
    done, launchers, programs = await policies_during(runner.run(task(), (), seat(model)))
    assert done.status == "timeout"
    assert (os.SCHED_RR in launchers) == may_run_ahead()
    assert programs == {os.SCHED_OTHER}


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_process_that_stays_behind_is_ended(
    model: Model, tmp_path: Path, isolation: str
) -> None:
    model.answer = lambda _messages: "fork\nfork\nDone."
    done = await runner_at(tmp_path, isolation=isolation).run(task(), (), seat(model))
    assert (done.status, done.text) == ("ok", "Done.")
    assert left_over() == []


async def test_a_cancelled_run_leaves_nothing(model: Model, runner: AgentRunner) -> None:
    model.answer = lambda _messages: "fork\nloop"
    run = asyncio.create_task(runner.run(task(), (), seat(model)))
    while not left_over():
        await asyncio.sleep(0.05)
    run.cancel()
    await asyncio.sleep(0)
    run.cancel()  # while it is cleaning up
    with pytest.raises(asyncio.CancelledError):
        await run
    assert left_over() == []
    assert list(runner.home.iterdir()) == []


async def test_a_flood_of_requests_takes_turns(model: Model) -> None:
    """The bodies of all of them at once would be in the host's memory."""
    now, most, lock = 0, 0, threading.Lock()

    def answer(_messages: object) -> str:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.02)
        with lock:
            now -= 1
        return "done"

    model.answer = answer
    relay = Relay(Upstream(model.url))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        async with running(relay, listener), aiohttp.ClientSession() as client:
            headers = {"authorization": f"Bearer {relay.secret}"}
            asked = (client.post(url, json={"messages": []}, headers=headers) for _ in range(40))
            answers = await asyncio.gather(*asked)
            assert {one.status for one in answers} == {200}
    assert 1 < most <= 8


async def test_halves_of_characters_reach_no_event(model: Model, runner: AgentRunner) -> None:
    model.answer = lambda _messages: "an emoji \ud83d"
    done = await runner.run(task(), (), seat(model))
    assert done.text == "an emoji \N{REPLACEMENT CHARACTER}"
    run = AgentRun(status="ok", exit_code=0, seconds=1, requests=1, lines=told(done.steps))
    assert AgentRun.model_validate_json(run.model_dump_json()) == run


async def test_a_log_that_its_agent_has_damaged_is_no_score(
    model: Model, runner: AgentRunner
) -> None:
    model.answer = lambda _messages: 'write ../agent/home/log.jsonl {"x": 1}\n'
    with pytest.raises(Transient, match="log cannot be read: KeyError"):
        await runner.run(task(), (), seat(model))
