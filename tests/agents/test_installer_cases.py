"""Quotes in every value, a file system that is full, and a gateway that is cut off half-way."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reefcommon.harness.agent import Place, find_agent
from reefcommon.harness.installation import Version, plan_of, script_of
from reefcommon.harness.tree import Entry
from tests.agents.machine import FakeGateway, Machine

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
ODD = 'it\'s a "b" $HOME `id` \\ é'
PATH = ODD.replace("\\", "")  # Node loads no module from a path with a backslash
SMALL = (Entry("r", "rules", {"text": "Be brief."}),)


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / PATH)
    made.prepare()
    return made


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["pi", "claude-code", "codex"])
def test_every_value_may_have_spaces_and_quotes(
    name: str, shell: str, machine: Machine, gateway: FakeGateway
) -> None:
    machine.name = name
    tree = (
        Entry("r", "rules", {"text": ODD}),
        *(Entry("s", "skill", {"name": "s", "description": ODD, "text": ODD}),),
    )
    place = Place(gateway.url, "packing", ODD)
    plan = plan_of(find_agent(name), tree, place, Version(ODD, "harness-1", ODD))
    temporary = machine.home / f"tmp {PATH}"
    temporary.mkdir()
    folders = {
        "REEF_AGENTS": f"{machine.home}/agents {PATH}",
        "REEF_BIN": f"{machine.home}/bin {PATH}",
    }
    done = machine.run(
        shell, stdin=script_of(plan), TMPDIR=str(temporary), REEF_TOKEN=ODD, **folders
    )
    assert done.returncode == 0, done.stderr
    assert f"release {ODD} of packing" in done.stderr
    assert list(temporary.iterdir()) == []
    wrapper = Path(folders["REEF_BIN"]) / f"reef-{name}"
    ran = machine.run(str(wrapper), "-p", ODD, REEF_TOKEN="")
    assert ran.returncode == 0, ran.stderr
    assert '"REEF_TOKEN":' in ran.stdout
    root = Path(folders["REEF_AGENTS"]) / name
    assert (root / "token").read_text() == ODD
    rules = {"pi": "AGENTS.md", "claude-code": "CLAUDE.md", "codex": "AGENTS.md"}[name]
    assert (root / "home" / rules).read_text() == f"{ODD}\n"


@pytest.mark.parametrize(
    ("given", "named"), [("HOME", "REEF_AGENTS"), ("REEF_AGENTS", "REEF_AGENTS"), ("REEF_BIN",) * 2]
)
def test_a_folder_that_cannot_be_written_is_told_before_npm(
    given: str, named: str, machine: Machine, gateway: FakeGateway
) -> None:
    place = Place(gateway.url, "packing", "smollm2")
    plan = plan_of(find_agent("pi"), SMALL, place, Version("r1", "harness-1"))
    (machine.home / "file").touch()
    done = machine.run("bash", stdin=script_of(plan), **{given: f"{machine.home}/file/below"})
    assert done.returncode == 1
    assert f"(ENOTDIR); `export {named}=FOLDER` names another folder" in done.stderr
    assert machine.npm_calls == []


def test_a_read_only_home_is_told(machine: Machine, gateway: FakeGateway, tmp_path: Path) -> None:
    place = Place(gateway.url, "packing", "smollm2")
    plan = plan_of(find_agent("pi"), SMALL, place, Version("r1", "harness-1"))
    (tmp_path / "script").write_text(script_of(plan))
    steps = f"""
        mkdir "$HOME/home" && mount -t tmpfs -o ro reef "$HOME/home" || exit 77
        HOME="$HOME/home" bash '{tmp_path}/script'
    """
    done = in_namespace(machine, steps)
    assert done.returncode == 1
    words = "home/.local/share/reef/pi cannot be written"
    assert words in done.stderr
    assert "`export REEF_AGENTS=FOLDER` names another folder" in done.stderr


def in_namespace(machine: Machine, steps: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ("unshare", "-rm", "sh", "-c", steps), env=machine.env, cwd=machine.home,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this machine gives no namespace to mount in")
    return done


def test_a_full_file_system_leaves_the_installed_version(
    machine: Machine, gateway: FakeGateway, tmp_path: Path
) -> None:
    place = Place(gateway.url, "packing", "smollm2")
    large = tuple(Entry(f"r{n}", "rules", {"text": "x" * 15_000}) for n in range(16))
    for name, tree in (("first", SMALL), ("second", large)):
        made = plan_of(find_agent("pi"), tree, place, Version(name, f"harness-{name}"))
        (tmp_path / name).write_text(script_of(made))
    (machine.root.parent).mkdir(parents=True)
    steps = f"""
        mount -t tmpfs -o size=400k reef "$HOME/.local/share/reef" || exit 77
        bash '{tmp_path}/first' || exit 1
        bash '{tmp_path}/second' && exit 2
        "$HOME/.local/bin/reef-pi" -p x || exit 3
        grep -q '"release":"first"' "$HOME/.local/share/reef/pi/plan.json" || exit 4
    """
    done = in_namespace(machine, steps)
    assert done.returncode == 0, done.stderr
    assert "ENOSPC" in done.stderr


def test_an_update_that_is_cut_off_changes_nothing(machine: Machine, gateway: FakeGateway) -> None:
    place = Place(gateway.url, "packing", "smollm2")
    first = plan_of(find_agent("pi"), SMALL, place, Version("r1", "harness-1"))
    assert machine.run("bash", stdin=script_of(first)).returncode == 0
    gateway.answers["/reef/harness/plan"] = plan_of(
        find_agent("pi"), (), place, Version("r2", "harness-2")
    )
    gateway.cut_after = 3000
    done = machine.agent("update")
    assert done.returncode == 1
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]
    assert (machine.root / "home/AGENTS.md").read_text() == "Be brief.\n"
    gateway.cut_after = None
    assert "is updated from r1" in machine.agent("update").stderr
    assert not (machine.root / "home/AGENTS.md").exists()
