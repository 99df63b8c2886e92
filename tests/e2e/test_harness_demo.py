"""`reef demo --harness`: what it is to show comes true, with real Pi if npm is there."""

import json
from pathlib import Path

import pytest

from reefcli.demo.harness.machine import missing
from tests.e2e.conftest import installed_agents, run_reef

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("harness-demo")]


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> tuple[dict, str]:
    """The facts of a run of both acts, and what it printed."""
    place: Path = tmp_path_factory.mktemp("demo") / "state"
    place.mkdir()
    (place / "agents").symlink_to(installed_agents(pytestconfig), target_is_directory=True)
    words = ("demo", "--harness", "--state-dir", str(place), "--json")
    done = run_reef(*words, timeout_s=800)
    facts = json.loads(done.stdout)
    assert done.returncode == (0 if facts["held"] else 1), done.stderr
    assert json.loads((place / "demo.json").read_text()) == facts
    return facts, done.stderr


def test_a_release_changes_a_plain_clients_answers_and_a_rollback_them_back(
    shown: tuple[dict, str],
) -> None:
    facts, said = shown
    act = facts["acts"]["plain"]
    assert act["answers"] == ["Paris.", "Hello! Paris.", "Paris."]
    assert (act["first"]["wins"], act["first"]["losses"]) == (6, 0)
    assert act["first"]["p_value"] < 0.02
    assert "won  0: What is the capital of France?" in said


@pytest.mark.skipif(bool(missing()), reason=f"{missing()} is not installed")
def test_a_skill_wins_reaches_its_user_and_a_substitute_loses(shown: tuple[dict, str]) -> None:
    facts, said = shown
    act = facts["acts"]["agent"]
    if "cannot be installed" in act.get("failure", ""):
        pytest.skip(f"npm has no package: {act['failure']}")
    assert (act["first"]["verdict"], act["first"]["wins"]) == ("select", 6)
    assert act["label"] == "8 x BERN"
    assert (act["second"]["verdict"], act["second"]["losses"]) == ("reject", 6)
    assert act["tree_unchanged"]
    assert "won  3 to Oslo" in said
    assert "lost 3 to Oslo" in said
