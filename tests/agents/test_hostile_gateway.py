"""Answers of a gateway that lies or has faults, updates at once: the installed agent still starts."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reefcommon.harness.agent import Place, find_agent
from reefcommon.harness.installation import Version, plan_of, script_of, tree_digest
from reefcommon.harness.tree import Entry
from tests.agents.machine import FakeGateway, Machine

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
NEWEST, PLAN = "/reef/harness/releases", "/reef/harness/plan"


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


def plan(release: str, gateway: FakeGateway, rules: int = 1) -> dict[str, Any]:
    skills = ({"name": f"s{n}", "description": "d", "text": f"{release} {n}"} for n in range(rules))
    tree = tuple(Entry(f"e{n}", "skill", skill) for n, skill in enumerate(skills))
    place = Place(gateway.url, "packing", "smollm2")
    return plan_of(find_agent("pi"), tree, place, Version(release, f"harness-{release}"))


def installed(home: Path, gateway: FakeGateway) -> Machine:
    made = Machine(home)
    made.prepare()
    assert made.run("sh", stdin=script_of(plan("r1", gateway))).returncode == 0
    return made


@pytest.fixture
def machine(tmp_path: Path, gateway: FakeGateway) -> Machine:
    return installed(tmp_path / "home", gateway)


@pytest.fixture(scope="module")
def lies() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


@pytest.fixture(scope="module")
def lied_to(tmp_path_factory: pytest.TempPathFactory, lies: FakeGateway) -> Machine:
    """One installation for all lies: each leaves it as it was."""
    return installed(tmp_path_factory.mktemp("lies") / "home", lies)


def named(files: dict[str, str]) -> dict[str, Any]:
    """Return files of a plan, with the digests that are right for them."""
    sums = dict.fromkeys(files, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    return {"files": dict.fromkeys(files, ""), "sums": sums, "digest": tree_digest(sums)}


@pytest.mark.parametrize(
    "odd",
    [
        {"program": ""},
        {"program": None},
        {"program": "cHJvZ3JhbQ=="},
        {"environment": None},
        {"headless": None},
        {"packages": {}},
        {"packages": []},
        {"files": None},
        {"files": {"a": 5}},
        {"sums": None},
        {"digest": "0" * 64},
        {"agent": "../../../out"},
        {"agent": "codex"},
        {"format": 2},
        named({"a": "", "a/b": ""}),
        named({"x" * 300: ""}),
        named({"../../out/x": ""}),
    ],
    ids=str,
)
def test_a_plan_with_a_fault_is_refused_whole(
    odd: dict[str, Any], lied_to: Machine, lies: FakeGateway
) -> None:
    before = {path: path.read_bytes() for path in lied_to.root.rglob("*") if path.is_file()}
    lies.answers[PLAN] = plan("r2", lies) | odd
    done = lied_to.agent("update")
    assert (done.returncode, done.stderr.startswith("reef: ")) == (1, True)
    after = {path: path.read_bytes() for path in lied_to.root.rglob("*") if path.is_file()}
    assert after == before
    assert lied_to.started("-p", "x")["argv"] == ["-p", "x"]
    assert not list(lied_to.home.rglob("out"))


@pytest.mark.parametrize("answer", [[], "x", 5, {}, {"data": 5}, {"data": ["x"]}, {"data": [[]]}])
def test_a_start_ignores_odd_news(answer: Any, lied_to: Machine, lies: FakeGateway) -> None:
    lies.answers[NEWEST] = answer
    assert lied_to.started("-p", "x")["argv"] == ["-p", "x"]
    lies.answers[PLAN] = answer
    assert lied_to.agent("update").returncode == 1
    assert lied_to.started("-p", "x")["argv"] == ["-p", "x"]


def test_an_answer_without_end_is_cut(machine: Machine, gateway: FakeGateway) -> None:
    gateway.answers[PLAN] = {"more": "x" * (65 * 1024 * 1024)}
    done = machine.agent("update")
    assert (done.returncode, "more than an answer holds" in done.stderr) == (1, True)


def test_no_word_of_a_server_moves_the_cursor(machine: Machine, gateway: FakeGateway) -> None:
    row = {"release_id": "r2", "content_id": "c", "reason": "good\x1b[2J\x1b]0;x\x07\u009b1A"}
    gateway.answers[NEWEST] = {"data": [row]}
    for words in (("-p", "x"), ("versions",)):
        done = machine.agent(*words)
        assert "good" in done.stdout + done.stderr
        assert not {"\x1b", "\x07", "\u009b"} & set(done.stdout + done.stderr)


def test_updates_at_once_leave_a_whole_installation(machine: Machine, gateway: FakeGateway) -> None:
    """Each writes files of its own release under the same names."""
    scripts = [script_of(plan(f"r{n}", gateway, rules=30)) for n in range(2, 8)]
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda script: machine.run("sh", stdin=script), scripts))
    assert [one.returncode for one in done] == [0] * 6, [one.stderr for one in done]
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]
    release = json.loads((machine.root / "plan.json").read_text())["release"]
    texts = [path.read_text() for path in (machine.root / "home/skills").glob("*/SKILL.md")]
    assert len(texts) == 30
    assert all(f"{release} " in text for text in texts)
    assert not list(machine.root.rglob("*.reef-next"))


def test_a_dead_update_holds_up_no_other(machine: Machine, gateway: FakeGateway) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (machine.root / "lock").write_text(str(dead.pid))
    (machine.root / "plan.next.json").write_text(json.dumps(plan("r2", gateway)))
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]
    assert json.loads((machine.root / "plan.json").read_text())["release"] == "r2"
    assert not (machine.root / "lock").exists()


def test_h2_a_changed_file_is_kept_beside_it_and_never_behind_a_link(
    machine: Machine, gateway: FakeGateway
) -> None:
    """H2."""
    skill, profile = machine.root / "home/skills/s0/SKILL.md", machine.home / ".profile"
    profile.write_text("mine")
    skill.write_text("changed")
    (skill.parent / "SKILL.md.yours").symlink_to(profile)
    assert machine.agent("doctor").returncode == 0
    assert (profile.read_text(), (skill.parent / "SKILL.md.yours").read_text()) == (
        "mine",
        "changed",
    )


def test_an_old_node_is_named_before_anything_is_written(
    tmp_path: Path, gateway: FakeGateway
) -> None:
    machine = Machine(tmp_path / "old")
    machine.prepare()
    node = shutil.which("node")
    script = f'#!/bin/sh\n[ "$1" = -v ] && echo v12.1.0 && exit\n[ "$1" = -e ] && exit 1\nexec {node} "$@"'
    (machine.home / "tools/node").write_text(script)
    (machine.home / "tools/node").chmod(0o755)
    done = machine.run("sh", stdin=script_of(plan("r1", gateway)))
    assert (done.returncode, "this is v12.1.0" in done.stderr) == (1, True)
    assert not machine.root.exists()
