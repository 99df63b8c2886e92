"""Real Pi from npm: isolated, with a scripted model, and in `reef demo --harness`. One file, as one worker runs it: they share its installation."""

import json
import shutil
from pathlib import Path

import pytest

from recipes.harness_evolve.examples.labels.model import reply
from recipes.harness_evolve.examples.labels.task import ORDERS, labelled
from recipes.reflection.examples.server import serving
from reefcli.demo.harness.acts import GOOD
from reefcli.demo.harness.machine import missing
from reefcommon.config_agent import AgentSection
from reefcommon.errors import Transient, Unavailable
from reefcommon.evaluator import as_task
from reefcommon.harness.tree import Entry
from reefkit.episodes.relay import Upstream
from reefkit.episodes.runner import AgentRunner, Seat
from tests.e2e.conftest import run_reef
from tests.episodes.conftest import needs_bubblewrap

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
SKILL = {"name": "shipping-labels", "description": "labels of orders", "text": GOOD}


@pytest.fixture(scope="module")
def agents(pytestconfig: pytest.Config) -> Path:
    """The folder of the agents' programs, kept between runs: npm takes a minute for each."""
    return pytestconfig.cache.mkdir("agents")


@needs_bubblewrap
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_pi_obeys_a_skill_and_a_dead_model_is_no_score(tmp_path: Path, agents: Path) -> None:
    runner = AgentRunner(AgentSection(adapter="pi", timeout_s=120), tmp_path / "episodes", agents)
    try:
        await runner.ready()
    except Unavailable as error:
        if "cannot be installed" in str(error):
            pytest.skip(f"npm has no package: {error}")
        raise
    task = as_task(ORDERS[0], 0)
    with serving(reply) as url:
        seat = Seat(Upstream(url), "default", "reef")
        done = await runner.run(task, (Entry("s", "skill", SKILL),), seat)
        assert labelled(ORDERS[0], done) == (1.0, "label.txt has '3 x OSLO'")
        assert [name for name, _ in done.calls] == ["read", "write"]
        assert done.requests == 3
        bare = await runner.run(task, (), seat)
        assert (bare.status, labelled(ORDERS[0], bare)[0]) == ("ok", 0.0)
    with pytest.raises(Transient, match="no answer of the model"):
        await runner.run(task, (), Seat(Upstream(url), "default", "reef"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, agents: Path) -> tuple[dict, str]:
    """The facts of a run of both acts, and what it printed."""
    place: Path = tmp_path_factory.mktemp("demo") / "state"
    place.mkdir()
    (place / "agents").symlink_to(agents, target_is_directory=True)
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
