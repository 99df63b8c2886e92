"""Bubblewrap around an agent: its own files, no network but the gateway, never another kind."""

from pathlib import Path

import pytest

from reefcommon.errors import BadConfig, Unavailable
from reefkit.episodes import isolation
from reefkit.episodes.runner import check_section
from tests.episodes.conftest import ISOLATIONS, Model, needs_bubblewrap, runner_at, seat, task


def answers(model: Model, *lines: str) -> None:
    model.answer = lambda _messages: "\n".join(lines)


@needs_bubblewrap
async def test_an_isolated_agent_reaches_the_gateway_alone(model: Model, tmp_path: Path) -> None:
    runner = runner_at(tmp_path, isolation="bubblewrap")
    port = model.url.rpartition(":")[2]
    answers(model, f"connect 127.0.0.1 {port}", "connect 192.0.2.1 80")
    done = await runner.run(task(), (), seat(model))
    said = [step.text for step in done.steps if step.role == "tool"]
    assert [text.partition(":")[0] for text in said] == ["refused", "refused"]
    assert done.requests == 1

    here = await runner_at(tmp_path, isolation="local").run(task(), (), seat(model))
    assert "connected" in [step.text for step in here.steps], "else the test shows nothing"


@needs_bubblewrap
async def test_an_isolated_agent_reads_its_own_files_alone(model: Model, tmp_path: Path) -> None:
    secret = tmp_path / "host-home/.netrc"
    secret.parent.mkdir()
    secret.write_text("password")
    runner = runner_at(tmp_path, isolation="bubblewrap")
    names = str(secret), "/etc/shadow", f"/proc/{1}/environ", "rules-of-mine"
    answers(model, "write rules-of-mine mine", *(f"read {name}" for name in names), "environment")
    done = await runner.run(task(), (), seat(model))
    said = [step.text for step in done.steps if step.role == "tool"]
    assert [text.startswith("refused") for text in said[:2]] == [True, True]
    assert "PATH=" not in said[2].replace("\0", "\n") or "REEF_EPISODE" in said[2]
    assert said[3] == "mine"
    assert done.files == {"rules-of-mine": "mine"}

    here = await runner_at(tmp_path, isolation="local").run(task(), (), seat(model))
    assert "password" in [step.text for step in here.steps], "else the test shows nothing"


@pytest.mark.parametrize("isolation_kind", ISOLATIONS)
async def test_an_agent_is_the_first_to_end_if_memory_is_short(
    model: Model, tmp_path: Path, isolation_kind: str
) -> None:
    runner = runner_at(tmp_path, isolation=isolation_kind)
    answers(model, "read /proc/self/oom_score_adj")
    done = await runner.run(task(), (), seat(model))
    assert [step.text.strip() for step in done.steps if step.role == "tool"] == ["1000"]


@needs_bubblewrap
async def test_an_isolated_agent_fills_neither_memory_nor_disk(
    model: Model, tmp_path: Path
) -> None:
    """The mounts of an isolation are in memory, and without bounds half of it each."""
    runner = runner_at(tmp_path, isolation="bubblewrap")
    folders = "/", "/dev/", "/etc/", "/tmp/", "/dev/shm/", ""
    answers(model, *(f"fill {folder}no-such-file 160" for folder in folders))
    done = await runner.run(task(), (), seat(model))
    said = [step.text for step in done.steps if step.role == "tool"]
    fixed, full = "refused: Read-only file system", "refused: No space left on device"
    assert said == [*(fixed,) * 3, *(full,) * 2, "written"]


async def test_h3_no_episode_is_run_without_the_isolation(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3."""
    for name, script in (("none", None), ("broken", "#!/bin/sh\necho 'no user namespaces' >&2\n")):
        tools = tmp_path / name
        tools.mkdir()
        if script:
            (tools / "bwrap").write_text(f"{script}exit 1\n")
            (tools / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tools))
        runner = runner_at(tmp_path, isolation="bubblewrap")
        with pytest.raises(BadConfig, match="bubblewrap cannot be used here"):
            check_section(runner.section)
        with pytest.raises(Unavailable, match="or name `local`"):
            await runner.run(task(), (), seat(model))
    assert model.asked == []


@needs_bubblewrap
async def test_h3_every_episode_is_run_in_the_isolation(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3."""
    commands = []
    inner = isolation.command

    def noted(*given: object) -> list[str]:
        commands.append(inner(*given))  # type: ignore[arg-type]
        return commands[-1]

    monkeypatch.setattr(isolation, "command", noted)
    runner = runner_at(tmp_path, isolation="bubblewrap")
    for _ in range(2):
        await runner.run(task(), (), seat(model))
    assert len(commands) == 2
    assert all(
        {"bwrap", "--unshare-all"} <= {Path(word).name for word in words} for words in commands
    )
