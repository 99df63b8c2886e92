"""The agent's program: fetched once by the installer's own code, or a path; and what is missing."""

import shutil
from pathlib import Path

import pytest

from reefcommon.config_agent import AgentSection
from reefcommon.errors import BadConfig, Unavailable
from reefkit.episodes.program import program_of
from tests.agents.machine import Machine

PI = AgentSection(adapter="pi")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path / "machine")
    made.prepare()
    for name in ("PATH", "FAKE_NPM_LOG"):
        monkeypatch.setenv(name, made.env[name])
    return made


@needs_node
def test_the_agent_is_fetched_from_npm_once(machine: Machine, tmp_path: Path) -> None:
    first, second = (program_of(PI, tmp_path / "agents") for _ in range(2))
    assert first == second
    node, script = map(Path, first.argv)
    assert node.exists()
    assert script.is_relative_to(tmp_path / "agents/pi/app")
    assert script.read_text()
    assert any(script.is_relative_to(folder) for folder in first.readable)
    assert len(machine.npm_calls) == 1


@needs_node
def test_npm_that_fails_is_waited_for(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NPM_FAILS", "1")
    with pytest.raises(Unavailable, match="npm could not install"):
        program_of(PI, tmp_path / "agents")
    monkeypatch.delenv("FAKE_NPM_FAILS")
    assert program_of(PI, tmp_path / "agents").argv
    assert len(machine.npm_calls) == 2


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadConfig, match="pi needs node and npm: install Node"):
        program_of(PI, tmp_path / "agents")
    with pytest.raises(BadConfig, match="is no program"):
        program_of(AgentSection(adapter="pi", binary=tmp_path), tmp_path / "agents")


def test_a_home_is_not_shown_for_a_program_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    section = AgentSection(adapter="pi", binary=program)
    assert program_of(section, tmp_path).readable == (tmp_path,)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert program_of(section, tmp_path).readable == (program,)
