"""`reef demo --harness` before anything is started: names of acts, and an act that cannot be shown."""

from pathlib import Path

import pytest

from tests.cli.fake_gateway import reef


def test_an_unknown_act_is_named() -> None:
    assert "choose of agent, plain" in reef("demo", "--harness", "--arms", "third", code=2)


def test_an_act_without_its_agent_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    place = str(tmp_path / "state")
    said = reef("demo", "--harness", "--arms", "agent", "--state-dir", place, code=1)
    assert "act one is left out: it needs node, npm, curl, bash" in " ".join(said.split())
    assert "DID NOT come true" in said
    (tmp_path / "state").mkdir()
    (tmp_path / "state/mine.txt").write_text("mine")
    said = reef("demo", "--harness", "--state-dir", place, code=2)
    assert "choose another directory" in " ".join(said.split())
