"""`ctx.trial` on a host: through the served model, with its budget, and kept for a job."""

import pytest

from reefcommon.config_sections import EvaluationSection, ModelEndpoint
from reefcommon.harness.tree import Entry
from reefcommon.recipe_context import BudgetSpent
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeRuntime, RecipeServices
from reefkit.retry import RetryPolicy
from tests.fakes.judge import Judge
from tests.jobs.words import WordsRecipe
from tests.recipes.samples import AT

PARENT = (Entry("brief", "rules", {"text": "Be brief."}),)
CHILD = (Entry("brief", "rules", {"text": "Be very brief."}),)
TASKS = ["one", "two"]
SECTION = EvaluationSection(max_tokens=7, score="tests.evaluator.verifiers:shortness")


class Host:
    """A binding whose served model is the judge, with a budget of calls."""

    def __init__(self, home, judge, max_calls):
        self.store = JobStore(home / "ledger.sqlite")
        url, served = judge.url.removesuffix("/v1"), ModelEndpoint(max_calls=max_calls)
        self.pool = ModelPool(self.store, {"served": served}, gateway_url=url, model_name="reef")
        services = RecipeServices(
            self.store, lambda: AT, self.pool, RetryPolicy(0.01, 0.05, 3), evaluation=SECTION
        )
        binding = Binding("default", "tests:Words", WordsRecipe(None))
        self.runtime = RecipeRuntime(binding, services)

    async def trial(self, subject="", **params):
        async def use(ctx):
            return await ctx.trial([PARENT, CHILD], TASKS, **params)

        return await self.runtime.call(use, self.runtime.context(subject), timeout_s=20.0)

    async def close(self):
        self.runtime.stop()
        await self.pool.close()
        self.store.close()


@pytest.fixture
async def judge():
    async with Judge() as made:
        yield made


@pytest.fixture
async def host(tmp_path, judge):
    made = Host(tmp_path, judge, max_calls=10)
    yield made
    await made.close()


async def test_a_trial_asks_the_served_model_and_counts_in_its_budget(host, judge):
    found = await host.trial(samples=2, temperature=0.5)
    assert [(result.scores, result.words) for result in found] == [
        ((-6.0, -6.0), ("short", "short"))
    ] * 2
    assert judge.calls == host.store.used("served").calls == 4
    for body, headers in zip(judge.bodies, judge.headers, strict=True):
        assert (body["n"], body["max_tokens"], body["temperature"]) == (2, 7, 0.5)
        assert (headers["x-reef-tag-turn-type"], headers["x-reef-tag-purpose"]) == ("side", "trial")
    seeds = {}
    for body in judge.bodies:
        seeds.setdefault(body["messages"][-1]["content"], []).append(body["seed"])
    assert {prompt: (len(each), len(set(each))) for prompt, each in seeds.items()} == {
        "one": (2, 1),
        "two": (2, 1),
    }
    await host.trial(samples=2)
    with pytest.raises(BudgetSpent):
        await host.trial(samples=2)
    assert judge.calls == 10


async def test_a_trial_of_a_job_that_was_interrupted_asks_only_what_is_missing(host, judge):
    judge.moods = ["well", "well", "well", "400"]
    with pytest.raises(Exception, match="served"):
        await host.trial("job-1")
    asked = judge.calls
    first = await host.trial("job-1")
    assert judge.calls == asked + 1, "three answers were kept"
    assert await host.trial("job-1") == first
    assert judge.calls == asked + 1
