"""The offer of an update, as a person at a terminal sees it: version, reason, changes, now or later."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.machine import FakeGateway, Machine
from tests.agents.test_installation import FIRST, SECOND, installed, plan

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
QUESTION = "update now? [Y/n]"


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


@pytest.fixture
def machine(tmp_path: Path, gateway: FakeGateway) -> Machine:
    """`reef-pi` of release r1, and a newer one."""
    made = Machine(tmp_path / "a home")
    made.prepare()
    installed(made, plan(FIRST, "r1", gateway))
    row = {"release_id": "r2", "content_id": "harness-r2", "reason": "four said so"}
    gateway.answers["/reef/harness/releases"] = {"data": [row]}
    gateway.answers["/reef/harness/plan"] = plan(SECOND, "r2", gateway)
    return made


def on_terminal(machine: Machine, answer: str, *words: str, **env: str) -> tuple[int, str]:
    """Start the agent on a terminal, type an answer to its question; its status, and the screen."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*(words or [str(machine.wrapper)])], stdin=slave, stdout=slave, stderr=slave,
        env={**machine.env, **env}, cwd=machine.home, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    seen, asked, end = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    seen += os.read(master, 65536)
                except OSError:  # the other side is closed
                    break
            if not asked and QUESTION.encode() in seen:
                asked = True
                os.write(master, answer.encode())
        return process.wait(10), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    finally:
        process.kill()
        os.close(master)


@pytest.mark.parametrize("answer", ["\r", "now\r", "y\r"])
def test_a_person_sees_what_an_update_is_and_takes_it_now(machine: Machine, answer: str) -> None:
    status, screen = on_terminal(machine, answer)
    assert status == 0, screen
    lines = screen.split("\r\n")
    assert lines[:2] == [
        "reef: a new harness, r2, is there: four said so; yours is r1",
        "reef: it changes skills/sieve/SKILL.md (new)",
    ]
    assert "later: reef-pi update" in lines[2]
    assert "is updated from r1: release r2" in screen
    assert screen.index("is updated from r1") < screen.index('"argv":[]'), "then the agent starts"
    assert (machine.root / "home/skills/sieve/SKILL.md").exists()
    assert QUESTION not in on_terminal(machine, "")[1]


@pytest.mark.parametrize("answer", ["n\r", "later\r", "\x04"])
def test_later_starts_the_agent_as_it_is(machine: Machine, answer: str) -> None:
    status, screen = on_terminal(machine, answer)
    assert (status, '"argv":[]' in screen) == (0, True), screen
    assert not (machine.root / "home/skills/sieve/SKILL.md").exists()
    assert QUESTION in on_terminal(machine, "n\r")[1], "and asks again the next time"


def test_ctrl_c_at_the_question_starts_nothing(machine: Machine) -> None:
    status, screen = on_terminal(machine, "\x03")
    assert (status, "argv" in screen) == (130, False), screen


def test_a_refused_update_says_so_and_the_agent_starts(
    machine: Machine, gateway: FakeGateway
) -> None:
    del gateway.answers["/reef/harness/plan"]
    status, screen = on_terminal(machine, "\r")
    assert (status, '"argv":[]' in screen) == (0, True), screen
    assert "reef: not updated: " in screen


def test_the_seconds_of_npm_are_counted_on_a_terminal(machine: Machine) -> None:
    slow = Path(machine.env["PATH"].split(":")[0]) / "npm"
    waits = "for (const end = Date.now() + 2500; Date.now() < end; );"
    slow.write_text(slow.read_text().replace("const prefix", f"{waits}\nconst prefix"))
    shutil.rmtree(machine.root / "app")
    status, screen = on_terminal(machine, "", str(machine.wrapper), "doctor")
    assert status == 0, screen
    assert "reef: npm is at work, 1 s" in screen
    assert "reef: all files are as they were installed" in screen.split("\r")
