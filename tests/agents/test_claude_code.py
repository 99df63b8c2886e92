"""Claude Code's files: a golden tree, the binding, and a start of it."""

import json
import shutil
from pathlib import Path

import pytest

from reefcommon.harness.admission import admit, check_tree
from reefcommon.harness.agent import Place, find_agent
from reefcommon.harness.installation import Version, plan_of, script_of
from reefcommon.harness.tree import Entry, Inadmissible, Mutation
from tests.agents.machine import FakeGateway, Machine

CLAUDE = find_agent("claude-code")
PLACE = Place("http://reef.test:8900", "packing", "smollm2", 16_384)
TREE = (
    Entry("brief", "rules", {"text": "Answer in one sentence."}),
    Entry("off", "rules", {"text": "Never used."}, disabled=True),
    Entry("port", "memory", {"text": "The test server listens on 8931."}),
    Entry("sieve", "skill", {"name": "sieve", "description": 'count "primes"', "text": "Use a sieve."}),
    Entry("fix", "agent_command", {"name": "fix", "description": "fix it", "text": "Fix $1."}),
    Entry("calm", "config", {"target": "primary", "values": {"language": "french"}}),
)  # fmt: skip


def test_the_files_of_a_tree() -> None:
    check_tree(TREE, CLAUDE.adapter)
    assert {name: body.decode() for name, body in CLAUDE.tree_files(TREE).items()} == {
        "CLAUDE.md": (
            "Answer in one sentence.\n\n## Memory\n\n- The test server listens on 8931.\n"
        ),
        "skills/sieve/SKILL.md": (
            '---\nname: "sieve"\ndescription: "count \\"primes\\""\n---\n\nUse a sieve.\n'
        ),
        "commands/fix.md": '---\ndescription: "fix it"\n---\n\nFix $1.\n',
    }
    assert CLAUDE.tree_files(()) == {}


def test_the_binding_is_the_places_and_holds_no_key() -> None:
    (body,) = CLAUDE.own_files(TREE, PLACE).values()
    found = json.loads(body)
    assert (found["language"], found["model"]) == ("french", "smollm2")
    assert found["apiKeyHelper"] == "printenv REEF_TOKEN"
    env = found["env"]
    assert env["ANTHROPIC_BASE_URL"] == "http://reef.test:8900"
    assert env["ANTHROPIC_CUSTOM_HEADERS"] == "x-reef-scenario: packing\nx-reef-harness: false"
    assert env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "4096"
    assert {text for name, text in env.items() if name.endswith("_MODEL")} == {"smollm2"}
    assert CLAUDE.environment()["ANTHROPIC_API_KEY"] == "", (
        "a user's own key goes before the helper"
    )


@pytest.mark.parametrize(
    "values",
    [
        {"env": {"ANTHROPIC_BASE_URL": "http://elsewhere.test"}},
        {"apiKeyHelper": "cat ~/.ssh/id"},
        {"model": "other"},
        {"hooks": {"Stop": []}},
        {"permissions": {"allow": ["Bash"]}},
        {"statusLine": {"type": "command", "command": "curl elsewhere.test"}},
    ],
)
def test_a_tree_sets_neither_endpoint_nor_what_runs_code(values: dict) -> None:
    config = {"kind": "config", "config": {"target": "primary", "values": values}}
    with pytest.raises(Inadmissible, match="a tree for claude-code sets: always"):
        admit((), [Mutation("create", "c", config)], CLAUDE.adapter)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_it_is_started_as_a_program_and_its_log_has_the_receipt(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a home", name="claude-code")
    machine.prepare()
    with FakeGateway() as gateway:
        place = Place(gateway.url, "packing", "smollm2")
        plan = plan_of(CLAUDE, TREE, place, Version("r1", "harness-1"))
        done = machine.run("bash", stdin=script_of(plan))
        assert done.returncode == 0, done.stderr
        home = machine.root / "home"
        ran = machine.started("-p", "two words", ANTHROPIC_API_KEY="the user's own")
        assert ran["argv"] == ["--settings", str(home / "reef.json"), "-p", "two words"]
        assert ran["env"]["CLAUDE_CONFIG_DIR"] == str(home)
        assert (ran["env"]["ANTHROPIC_API_KEY"], ran["env"]["REEF_TOKEN"]) == ("", "t 1'")

        assert "there is no answer" in machine.agent("report", "bad").stderr
        logs = home / "projects/-work"
        logs.mkdir(parents=True)
        told = json.dumps({"text": '"id":"msg_rec-bad-0000"'})
        rows = [{"message": {"id": f"msg_rec-0{n}-abcd"}} for n in (1, 2)]
        text = "\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        (logs / "s.jsonl").write_text(f"{text}\n{told}\n")
        gateway.answers["/reef/report"] = {"agent_record_id": "rep-1"}
        assert "rep-1" in machine.agent("report", "--score", "1").stderr
        assert json.loads(gateway.asked[-1][2])["references"] == ["rec-02-abcd"]
        assert "claude.exe" in machine.agent("doctor").stderr
