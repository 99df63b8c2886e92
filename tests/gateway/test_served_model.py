"""Recipes ask Reef's own model through the gateway: recorded as side calls, repeated without effect."""

import contextlib

import pytest

from reefcommon.recipe import Knobs
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeRuntime, RecipeServices
from reefkit.retry import RetryPolicy
from tests.jobs.words import WordsRecipe
from tests.recipes.samples import AT

from .conftest import CHAT, bench_of
from .test_engine import node_url  # noqa: F401 - a fixture


@contextlib.asynccontextmanager
async def runtime_on(home, url):
    store = JobStore(home / "ledger.sqlite")
    pool = ModelPool(store, gateway_url=url, priority=10)
    services = RecipeServices(store, lambda: AT, pool, RetryPolicy(0.01, 0.05, 3))
    made = RecipeRuntime(Binding("default", "tests:W", WordsRecipe(Knobs())), services)
    yield made
    made.stop()
    await pool.close()
    store.close()


async def greet(ctx):
    return await ctx.models["served"].chat(CHAT, purpose="judge", max_tokens=8, seed=3)


async def test_a_side_call_is_recorded_with_its_purpose_and_repeated_by_its_key(tmp_path):
    async with bench_of() as bench:
        answers = []
        for home in ("a", "b"):  # the second host has lost its job store
            (tmp_path / home).mkdir()
            async with runtime_on(tmp_path / home, bench.url) as runtime:
                ctx = runtime.context("smp-1")
                answers.append(await runtime.call(greet, ctx, timeout_s=20.0))
        assert answers[0] == answers[1]
        (record,) = bench.log.records
    assert record.tags == {"turn-type": "side", "purpose": "judge"}
    assert record.event_id.startswith("side-")


@pytest.mark.engine
async def test_tokens_are_scored_by_the_served_model(tmp_path, node_url):  # noqa: F811
    async with bench_of(real_engine=node_url) as bench, runtime_on(tmp_path, bench.url) as runtime:

        async def score(ctx):
            return await ctx.models["served"].score([5, 6, 7, 8], purpose="kl")

        scores = await runtime.call(score, runtime.context("smp-1"), timeout_s=60.0)
        replies = await runtime.call(greet, runtime.context("smp-1"), timeout_s=60.0)
    assert len(scores) == 3
    assert all(value < 0 for value in scores)
    assert replies[0].tokens > 8
