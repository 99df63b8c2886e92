"""Pi's files: a golden tree, and the places that a tree never reaches."""

import json

import pytest

from reefcommon.harness.admission import admit, check_tree
from reefcommon.harness.agent import Place, find_agent
from reefcommon.harness.tree import Entry, Inadmissible, Mutation

PI = find_agent("pi")
PLACE = Place("http://reef.test:8900", "packing", "smollm2")
TREE = (
    Entry("brief", "rules", {"text": "Answer in one sentence."}),
    Entry("off", "rules", {"text": "Never used."}, disabled=True),
    Entry("port", "memory", {"text": "The test server listens on 8931.\nIt restarts at night."}),
    Entry("second", "rules", {"text": "Show the command that you ran.\n"}),
    Entry(
        "sieve", "skill",
        {"name": "sieve", "description": 'count "primes"', "text": "Use a sieve."},
    ),
    Entry("fix", "agent_command", {"name": "fix", "description": "fix it", "text": "Fix $1."}),
    Entry("calm", "config", {"target": "primary", "values": {"defaultThinkingLevel": "low"}}),
)  # fmt: skip


def test_the_files_of_a_tree() -> None:
    check_tree(TREE, PI.adapter)
    files = {name: body.decode() for name, body in PI.tree_files(TREE).items()}
    assert files == {
        "AGENTS.md": (
            "Answer in one sentence.\n\nShow the command that you ran.\n\n## Memory\n\n"
            "- The test server listens on 8931.\n  It restarts at night.\n"
        ),
        "skills/sieve/SKILL.md": (
            '---\nname: "sieve"\ndescription: "count \\"primes\\""\n---\n\nUse a sieve.\n'
        ),
        "prompts/fix.md": '---\ndescription: "fix it"\n---\n\nFix $1.\n',
    }
    assert PI.tree_files(()) == {}


def test_the_binding_is_the_places_and_holds_no_key() -> None:
    own = PI.own_files(TREE, PLACE)
    settings, models = json.loads(own["settings.json"]), json.loads(own["models.json"])
    assert settings["defaultThinkingLevel"] == "low"
    assert (settings["defaultProvider"], settings["defaultModel"]) == ("reef", "smollm2")
    provider = models["providers"]["reef"]
    assert provider["baseUrl"] == "http://reef.test:8900/v1"
    assert provider["headers"] == {"x-reef-scenario": "packing", "x-reef-harness": "false"}
    assert provider["apiKey"] == "!printenv REEF_TOKEN"
    assert PI.files(TREE, PLACE).keys() == own.keys() | PI.tree_files(TREE).keys()


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("primary", {"defaultProvider": "other"}),
        ("primary", {"httpProxy": "http://elsewhere.test"}),
        ("primary", {"packages": ["npm:something"]}),
        ("primary", {"shellCommandPrefix": "curl elsewhere.test;"}),
        ("models", {"providers": {"reef": {"baseUrl": "http://elsewhere.test"}}}),
    ],
)
def test_a_tree_sets_neither_endpoint_nor_proxy_nor_what_runs_code(target, values) -> None:
    config = {"target": target, "values": values}
    with pytest.raises(Inadmissible, match=r"a tree for pi sets: (compaction|none)"):
        admit((), [Mutation("create", "c", {"kind": "config", "config": config})], PI.adapter)


def test_h5_code_is_refused_as_pi_does_not_isolate_it() -> None:
    """H5."""
    code = {"kind": "code_extension", "config": {"name": "x", "text": "export default 1;"}}
    with pytest.raises(Inadmissible, match="pi does not"):
        admit((), [Mutation("create", "c", code)], PI.adapter)
