"""Seekers beside others: faults stay with the seeker that has them, questions are bounded, proposals are made once."""

import asyncio
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import httpx
import pytest

from reefcommon.config import parse
from reefcommon.errors import Poison
from reefcommon.recipe import Knobs
from reefcommon.recipe_context import BudgetSpent, ModelFailed
from reefcommon.settings import HostSettings, SystemSettings
from reefkit.jobs.host import seek_services
from reefkit.jobs.unit_fates import UnitFate
from reefkit.recipes.seek_client import tag_headers
from reefkit.recipes.seek_context import learned_from
from tests.jobs.words import WordsRecipe
from tests.recipes.samples import AT
from tests.seek.rig import GridRecipe, SeekRig
from tests.seek.world import World, error
from tests.trainer.rig import release

QUESTION = [{"role": "user", "content": "how?"}]


def seeker(function):
    """A recipe whose `seek` is this function."""
    recipe = type("Recipe", (WordsRecipe,), {"seek": lambda self, ctx: function(ctx)})
    return recipe(Knobs())


async def until(condition, within_s=60.0):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.01)


async def raises(ctx):
    raise ValueError("a mistake")


async def exits(ctx):
    sys.exit(3)


async def blocks(ctx):
    time.sleep(1.5)
    raise ValueError("blocked for a while")


@pytest.mark.parametrize("fault", [raises, exits, blocks])
async def test_a_faulty_seeker_harms_no_other(tmp_path, fault):
    world = World()
    rig = SeekRig(tmp_path, world, GridRecipe(Knobs()), seeker(fault))
    async with rig.running():
        await asyncio.wait_for(rig.seeks[0], 100)
        bad = rig.handlers.loops[1].seeker
        await until(lambda: bad.starts >= 2)
        assert not rig.seeks[1].done(), "it is started again and again"
        assert bad.facts()["last_error"]
        assert rig.loop.facts()["seek"]["state"] == "done"
    assert len(world.reports) == 12
    rig.store.close()


async def test_a_seeker_that_recovers_goes_on_from_its_committed_state(tmp_path):
    async def fails_twice(ctx):
        seen = ctx.store.get("seen", 0)
        ctx.store.put("seen", seen + 1)
        ctx.store.put_blob("archive", b"x" * seen)
        await ctx.commit()
        ctx.store.put("lost", True)
        if seen < 2:
            raise ValueError("again")
        assert ctx.store.blob("archive") == b"xx"

    rig = SeekRig(tmp_path, World(), seeker(fails_twice))
    assert await rig.live()
    assert rig.state("seen") == "3"
    assert rig.state("lost") == "true", "a call that returns keeps its last writes"
    assert rig.loop.seeker.starts == 3
    rig.store.close()


async def test_a_spent_budget_is_a_state(tmp_path):
    async def spends(ctx):
        raise BudgetSpent("judge: 10 of 10 calls used")

    rig = SeekRig(tmp_path, World(), seeker(spends))
    async with rig.running():
        await until(lambda: rig.loop.seeker.state.startswith("waits"))
        assert rig.loop.seeker.last_error is None
        assert "10 of 10" in rig.loop.facts()["seek"]["state"]
    rig.store.close()


async def test_a_seekers_questions_count_against_the_served_models_budget(tmp_path):
    """Used up in the second step of three; raised, the search goes on. A repeat is not counted."""
    world = World()
    for calls in (6, 6, 12):
        rig = SeekRig(tmp_path, world, budget={"max_calls": calls})
        found = rig.loop.seeker
        async with rig.running():
            await until(lambda seen=found: not seen.state.startswith(("starting", "seeking")))
        assert ("6 of 6 calls used" in found.state) == (calls == 6), found.state
        assert (found.state == "done") == (calls == 12)
        assert world.computed.total() == calls
        assert rig.loop.runtime.services.models.facts()["served"]["used"]["calls"] == calls
        assert rig.store.used("served").tokens > 0
        known = rig.store.asked_for(rig.loop.binding.key, "#seek")[0]
        assert known == (2 if calls == 6 else 0), "a commit forgets the keys of its step"
        rig.store.close()


async def test_tokens_and_money_of_questions_are_counted_once(tmp_path):
    async def asks(ctx):
        seen = ctx.store.get("seen", 0)
        asked = [await ctx.ask(QUESTION, key=str(n), tags={}) for n in range(2)]
        assert len({one.receipt for one in asked}) == 2
        if seen == 0:
            raise ValueError("again, with the same keys")

    rig = SeekRig(tmp_path, World(), seeker(asks), budget={"prompt_price": 1e6})
    async with rig.running():
        await until(lambda: rig.loop.seeker.starts >= 3)
        use = rig.store.used("served")
    assert use.calls == 2
    assert use.tokens > 0
    assert use.cost == use.prompt_tokens
    rig.store.close()


async def test_questions_under_way_are_bounded(tmp_path):
    async def asks(ctx):
        keys = [ctx.ask(QUESTION, key=str(n), tags={}, seed=n) for n in range(12)]
        assert len({asked.text for asked in await asyncio.gather(*keys)}) == 12

    world = World(slow_s=0.01)
    rig = SeekRig(tmp_path, world, seeker(asks), in_flight=3)
    assert await rig.live()
    assert world.most_under_way == 3
    rig.store.close()


async def test_a_key_has_one_answer_and_one_request(tmp_path):
    seen = []

    async def asks(ctx):
        first = await ctx.ask(QUESTION, key="k", tags={"step": "1"}, seed=1)
        again = await ctx.ask(QUESTION, key="k", tags={"step": "1"}, seed=1)
        seen.append((first, again))
        with pytest.raises(ModelFailed, match="another body"):
            await ctx.ask(QUESTION, key="k", tags={}, seed=2)
        await ctx.report(first.receipt, 1.0, metadata={"a": 1})
        await ctx.report(first.receipt, 1.0, metadata={"a": 1})
        with pytest.raises(Poison, match="other content"):
            await ctx.report(first.receipt, 2.0)
        with pytest.raises(ValueError, match="no name of a tag"):
            await ctx.ask(QUESTION, key="x", tags={"A B": "1"})

    world = World()
    rig = SeekRig(tmp_path, world, seeker(asks))
    assert await rig.live()
    ((first, again),) = seen
    assert first == again
    assert (first.release_id, first.load_id, first.finish_reason) == ("r5", "run:5", "stop")
    assert (len(world.answers), len(world.reports)) == (1, 1)
    rig.store.close()


async def test_no_question_is_asked_before_the_first_release(tmp_path):
    async def asks(ctx):
        await ctx.ask(QUESTION, key="k", tags={})

    world = World()
    rig = SeekRig(tmp_path, world, seeker(asks), created=False)
    async with rig.running():
        await until(lambda: "no release yet" in str(rig.loop.facts()["seek"]["state"]))
        assert world.requests == []
        rig.store.advance(release(5))
        await asyncio.wait_for(rig.seeks[0], 60)
    assert len(world.requests) == 1
    rig.store.close()


async def test_an_exchange_that_a_dying_gateway_cut_off_is_asked_anew(tmp_path):
    seen = []

    async def asks(ctx):
        seen.append((await ctx.ask(QUESTION, key="k", tags={})).receipt)

    world = World()
    world.faults = [error(409, "exchange_aborted", "was cut off") for _ in range(2)]
    rig = SeekRig(tmp_path, world, seeker(asks))
    assert await rig.live()
    keys = [request.headers["x-reef-agent-record-id"] for request in world.requests]
    assert len(set(keys)) == 3, "each cut off key is given up"
    assert seen == [keys[-1]]
    rig.store.close()


async def test_the_gateway_is_waited_for_and_shown(tmp_path):
    world = World()
    world.faults = [
        httpx.ConnectError("refused"),
        error(503, "not_durable", "neither broker nor disk", **{"retry-after": "0"}),
        error(401, "invalid_api_key", "send a valid token"),
        error(409, "release_not_served", "not served yet"),
    ]
    seen = []

    async def asks(ctx):
        await ctx.ask(QUESTION, key="k", tags={})

    rig = SeekRig(tmp_path, world, seeker(asks))
    async with rig.running():
        while not rig.seeks[0].done():
            seen.append(rig.loop.facts()["seek"]["state"])
            await asyncio.sleep(0.01)
        await rig.seeks[0]
    for reason in ("does not answer", "neither broker", "valid token", "not served yet"):
        assert any(reason in state for state in seen), reason
    assert len(world.answers) == 1
    pins = {request.headers.get("x-reef-release-id") for request in world.requests}
    assert pins == {"r5"}, "the newest release that the host knows"
    rig.store.close()


async def test_a_proposal_is_made_once_and_its_verdict_is_heard(tmp_path):
    heard, ids = [], []
    tree = tmp_path / "solution"
    tree.mkdir()
    (tree / "best.py").write_text("print(2.6)")

    async def proposes(ctx):
        for _ in range(2):
            found = await ctx.publish("solution", tree, metrics={"score": 2.6}, reason="better")
            ids.append(found)
        if not ctx.store.get("failed"):
            ctx.store.put("failed", True)
            await ctx.commit()
            raise ValueError("killed after the proposal")
        with pytest.raises(Poison, match="finite"):
            await ctx.publish("solution", tree, metrics={"score": float("nan")}, reason="")

    class Proposer(WordsRecipe):
        def seek(self, ctx):
            return proposes(ctx)

        async def on_verdict(self, judged, ctx):
            heard.append((judged.outcome, judged.candidate.kind))

    world = World()
    rig = SeekRig(tmp_path, world, Proposer(Knobs()))
    assert await rig.live()
    rig.restart()  # the third life proposes it again
    async with rig.running():
        await asyncio.wait_for(rig.seeks[0], 60)
        await until(lambda: heard)
    (candidate,) = {event.event_id: event for event in rig.bus.candidates}.values()
    assert len(rig.bus.candidates) == 1
    assert set(ids) == {candidate.event_id}
    assert (candidate.kind, candidate.base_release_id, candidate.reason) == (
        "solution",
        "r5",
        "better",
    )
    assert candidate.metrics == {"score": 2.6}
    assert (rig.shelf.root / candidate.content_id / "best.py").read_text() == "print(2.6)"
    assert heard == [("published", "solution")]
    assert rig.loop.facts()["seek"]["proposed"] == {"published": 1}
    assert rig.loop.facts()["jobs"] == {}, "its units' jobs are counted apart"
    rig.store.close()


async def test_a_task_that_an_ended_call_left_has_no_effect(tmp_path):
    left = []

    async def leaves(ctx):
        if not left:
            left.append(ctx)
            raise ValueError("restart")
        with pytest.raises(Exception, match="has ended"):
            await left[0].commit()
        with pytest.raises(Exception, match="has ended"):
            await left[0].ask(QUESTION, key="k", tags={})
        await ctx.sleep_until(AT - timedelta(seconds=1))

    world = World()
    rig = SeekRig(tmp_path, world, seeker(leaves))
    assert await rig.live()
    assert world.requests == []
    rig.store.close()


def test_what_was_learned_is_the_end_of_the_last_job():
    fates = {"a": UnitFate("used", "published", 1), "b": UnitFate("used", "rejected", 2)}
    assert learned_from(["a", "b"], fates) == "rejected"
    assert learned_from(["a", "b", "c"], fates) is None, "c has not arrived"
    assert learned_from(["a", "c"], fates | {"c": UnitFate("waiting")}) is None
    assert learned_from(["a", "c"], fates | {"c": UnitFate("used", "announced", 3)}) is None
    assert learned_from(["a", "c"], fates | {"c": UnitFate("refused")}) == "published"
    assert learned_from(["c"], {"c": UnitFate("refused")}) == "refused"
    assert learned_from(["a"], {"a": UnitFate("used", "pending", 1)}) == "pending"


async def test_a_seeker_has_the_token_of_the_served_model(tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    served = parse(
        f"reef: {{recipe: 'a.b:C'}}\nmodels: {{served: {{key_file: {key}, timeout_s: 9}}}}\n"
    )
    system = SystemSettings(gateway_url="http://gateway", model_name="mine")
    outside = SimpleNamespace(system=system, heads=None)
    settings = HostSettings(seek_in_flight=3, seek_priority=0)
    services = seek_services(served, outside, settings)
    client = services.client()
    assert (client.in_flight, client.timeout_s) == (3, 9.0)
    assert (services.model_name, services.priority) == ("mine", 0)
    world = World()
    client.transport = httpx.MockTransport(world.handle)
    await client.ask("default", "k", {"messages": QUESTION}, {}, lambda: "r5")
    await client.close()
    assert world.requests[0].headers["authorization"] == "Bearer secret"


def test_tags_are_headers():
    assert tag_headers({"turn-type": "main"}) == {"x-reef-tag-turn-type": "main"}


@pytest.mark.parametrize(
    "value", ["a\nb", "a\r\nx-reef-scenario: other", "\x00", "\ud800", "a\u2028b"]
)
def test_a_tag_that_no_header_holds_is_a_mistake_of_the_recipe(value):
    """Sent, it would look as if the gateway were away, for ever."""
    with pytest.raises(ValueError, match=r"x-reef-tag-topic: .* is no value of a tag"):
        tag_headers({"topic": value})
    assert tag_headers({"topic": " Größe "}) == {"x-reef-tag-topic": "Größe"}


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
async def test_a_score_that_is_not_finite_is_no_report(tmp_path, score):
    found = []

    async def seek(ctx):
        asked = await ctx.ask(QUESTION, key="k", tags={})
        for call in (
            lambda: ctx.report(asked.receipt, score, feedback="words"),
            lambda: ctx.ask(QUESTION, key="other", tags={}, temperature=score),
        ):
            with pytest.raises(Poison, match="finite"):
                await call()
            found.append(1)

    world = World()
    rig = SeekRig(tmp_path, world, seeker(seek))
    assert await rig.live()
    assert (len(found), len(world.answers), world.reports) == (2, 1, {})
