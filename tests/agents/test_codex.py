"""Codex's files: a golden tree, the binding, and a start of it."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from reefcommon.harness.admission import admit, check_tree
from reefcommon.harness.agent import Place, find_agent
from reefcommon.harness.installation import Version, plan_of, script_of
from reefcommon.harness.tree import Entry, Inadmissible, Mutation
from tests.agents.machine import FakeGateway, Machine

CODEX = find_agent("codex")
PLACE = Place("http://reef.test:8900", "packing", 'a "model" \\ é')
TREE = (
    Entry("brief", "rules", {"text": "Answer in one sentence."}),
    Entry("port", "memory", {"text": "The test server listens on 8931."}),
    Entry("sieve", "skill", {"name": "sieve", "description": "count primes", "text": "Use a sieve."}),
    Entry("calm", "config", {"target": "primary", "values": {"personality": "pragmatic"}}),
)  # fmt: skip


def test_the_files_of_a_tree() -> None:
    check_tree(TREE, CODEX.adapter)
    assert {name: body.decode() for name, body in CODEX.tree_files(TREE).items()} == {
        "AGENTS.md": (
            "Answer in one sentence.\n\n## Memory\n\n- The test server listens on 8931.\n"
        ),
        "skills/sieve/SKILL.md": (
            '---\nname: "sieve"\ndescription: "count primes"\n---\n\nUse a sieve.\n'
        ),
    }


def test_the_binding_is_the_places_and_holds_no_key() -> None:
    (body,) = CODEX.own_files(TREE, PLACE).values()
    found = tomllib.loads(body.decode())
    assert (found["personality"], found["model"]) == ("pragmatic", PLACE.model)
    assert (found["model_provider"], found["model_context_window"]) == ("reef", 32_768)
    assert found["model_providers"]["reef"] == {
        "name": "Reef",
        "base_url": "http://reef.test:8900/v1",
        "wire_api": "responses",
        "env_key": "REEF_TOKEN",
        "http_headers": {"x-reef-scenario": "packing", "x-reef-harness": "false"},
        "supports_websockets": False,
    }
    assert not any(found["features"].values())


@pytest.mark.parametrize(
    "values",
    [
        {"model_providers": {"reef": {"base_url": "http://elsewhere.test"}}},
        {"model": "other"},
        {"notify": ["sh", "-c", "curl elsewhere.test"]},
        {"mcp_servers": {"x": {"command": "sh"}}},
        {"sandbox_mode": "danger-full-access"},
    ],
)
def test_a_tree_sets_neither_endpoint_nor_what_runs_code(values: dict) -> None:
    config = {"kind": "config", "config": {"target": "primary", "values": values}}
    with pytest.raises(Inadmissible, match="a tree for codex sets: hide_agent"):
        admit((), [Mutation("create", "c", config)], CODEX.adapter)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_it_is_started_with_its_profile_and_its_log_has_the_receipt(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a home", name="codex")
    machine.prepare()
    with FakeGateway() as gateway:
        place = Place(gateway.url, "packing", "smollm2")
        plan = plan_of(CODEX, TREE, place, Version("r1", "harness-1"))
        done = machine.run("bash", stdin=script_of(plan))
        assert done.returncode == 0, done.stderr
        ran = machine.started("exec", "two words")
        assert ran["argv"] == ["--profile", "reef", "exec", "two words"]
        assert ran["env"]["CODEX_HOME"] == str(machine.root / "home")
        assert ran["env"]["REEF_TOKEN"] == "t 1'"
        # What the agent writes itself is no changed file.
        (machine.root / "home/config.toml").write_text('[projects."/x"]\ntrust_level = "trusted"\n')
        logs = machine.root / "home/sessions/2026/12/01"
        logs.mkdir(parents=True)
        rows = [{"payload": {"id": "msg_rec-01-abcd"}}, {"payload": {"id": "fc_rec-02-abcd_1"}}]
        text = "\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        (logs / "rollout-1.jsonl").write_text(text)
        gateway.answers["/reef/report"] = {"agent_record_id": "rep-1"}
        assert "rep-1" in machine.agent("report", "--score", "0", "too", "long").stderr
        assert json.loads(gateway.asked[-1][2])["references"] == ["rec-02-abcd"]
        assert machine.started("exec", "x")["argv"][-1] == "x"
