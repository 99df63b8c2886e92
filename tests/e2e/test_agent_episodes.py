"""Real Pi from npm, isolated, with a scripted model: it finds a skill, and a failure is none."""

import shutil

import pytest

from recipes.harness_evolve.examples.labels.model import reply
from recipes.harness_evolve.examples.labels.task import ORDERS, labelled
from recipes.reflection.examples.server import serving
from reefcli.demo.harness.acts import GOOD
from reefcommon.config_agent import AgentSection
from reefcommon.errors import Transient, Unavailable
from reefcommon.evaluator import as_task
from reefcommon.harness.tree import Entry
from reefkit.episodes.relay import Upstream
from reefkit.episodes.runner import AgentRunner, Seat
from tests.e2e.conftest import installed_agents
from tests.episodes.conftest import needs_bubblewrap

pytestmark = [
    needs_bubblewrap,
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("harness-demo"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]
SKILL = {"name": "shipping-labels", "description": "labels of orders", "text": GOOD}


async def test_pi_obeys_a_skill_and_a_dead_model_is_no_score(
    tmp_path, pytestconfig: pytest.Config
) -> None:
    agents = installed_agents(pytestconfig)
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
