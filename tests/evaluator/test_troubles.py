"""Evaluations that something gets in the way of: no verdict is made up."""

import asyncio

import pytest

from reefcommon.errors import Unavailable
from tests.evaluator.conftest import TASKS, EpisodeNode, World, candidate

pytestmark = pytest.mark.redis


async def test_an_engine_that_fails_now_and_then(world: World) -> None:
    """T5: failed episodes are tried again, never scored as 0."""
    world.nodes[0].fails = {"reef": 2, "cand": 0}
    found = await world.verdict(candidate())
    assert (found.verdict, found.head_score, found.failed_episodes) == ("select", 1.0, 0)


@pytest.mark.parametrize("side", ["cand", "reef"])
async def test_an_engine_that_goes_on_failing(world: World, side: str) -> None:
    """T5: then the evaluation has failed, whichever side it was, and no score is made up."""
    node = world.nodes[0]
    probes = iter([0])
    original = node._failing

    def failing(model: str) -> None:
        original(model)
        if side in model and next(probes, None) is None:
            raise Unavailable("failed for good")

    node._failing = failing  # type: ignore[method-assign]
    found = await world.verdict(candidate())
    assert found.verdict == "evaluation_failed"
    assert found.failed_episodes >= 2
    assert "failed for good (tried 3 times)" in found.reason
    assert found.candidate_score is None
    assert all((task.candidate if side == "cand" else task.head) != 0.0 for task in found.tasks)


@pytest.mark.parametrize("policy", ["score_comparison", "no_regression", "always", "paired_confidence"])
async def test_no_episode_starts(world: World, policy: str) -> None:
    """T6: 0 to 0 is not a tie that passes, under no policy."""
    world.text = f"{TASKS}, policy: {policy}}}"

    async def dead(*_: object, **params: object) -> object:
        raise Unavailable("no episode starts")

    process = await world.process()
    node = world.nodes[0]
    probe = node.chat
    calls = iter([probe])

    async def chat(*args: object, **params: object) -> object:
        live = next(calls, None)
        return await (live or dead)(*args, **params)

    node.chat = chat  # type: ignore[method-assign,assignment]
    await process.on_candidate(candidate())
    [found] = world.verdicts()
    assert found.verdict == "evaluation_failed"
    assert found.failed_episodes == 6
    assert all(task.candidate is None and task.head is None for task in found.tasks)
    assert not any("@cand-" in name for name in node.adapters)


@pytest.mark.parametrize(("name", "words"), [("broken", "ZeroDivisionError: no"), ("nothing", "not a finite number")])
async def test_a_verifier_that_fails(world: World, name: str, words: str) -> None:
    """T5: a verifier's mistake is no score of 0.0."""
    world.text = TASKS.replace("verifiers:length", f"verifiers:{name}") + "}"
    found = await world.verdict(candidate())
    assert found.verdict == "evaluation_failed"
    assert words in found.reason
    assert found.failed_episodes == 6


@pytest.mark.parametrize("how", ["missing", "damaged", "refused", "lies"])
async def test_a_candidate_that_does_not_serve(world: World, how: str) -> None:
    event = candidate()
    if how == "missing":
        event = candidate(content_id="lora-" + "0" * 32)
    if how == "damaged":
        world.store.damaged.add(event.content_id)
    world.nodes[0].full = how == "refused"
    world.nodes[0].lies = how == "lies"
    found = await world.verdict(event)
    assert found.verdict == "evaluation_failed"
    assert found.reason.startswith("does not serve: ")


async def test_a_node_that_is_away_is_waited_for(world: World) -> None:
    world.nodes[0].down = True
    with pytest.raises(Unavailable, match="no serving node for a trial"):
        await (await world.process()).on_candidate(candidate())
    assert world.verdicts() == []
    world.nodes[0].down = False
    assert (await world.verdict(candidate())).verdict == "select"


async def test_a_node_without_the_head_is_passed_over(world: World) -> None:
    await world.advance("r1-000000", adapter="default@r1-000000")
    world.nodes = [EpisodeNode("http://node-1"), EpisodeNode("http://node-2", adapters={"default@r1-000000": "/x"})]
    for seed in "abcd":
        assert (await world.verdict(candidate(seed, base="r1-000000"))).verdict == "select"
    assert not world.nodes[0].asked
    assert {model for model, _, _ in world.nodes[1].asked if "cand" not in model} == {"default@r1-000000"}


async def test_cancelled_in_the_middle_it_leaves_nothing(world: World) -> None:
    hold = asyncio.Event()

    async def chat(*_: object, **__: object) -> object:
        await hold.wait()
        raise AssertionError

    world.nodes[0].chat = chat  # type: ignore[method-assign,assignment]
    task = asyncio.create_task((await world.process()).on_candidate(candidate()))
    while not world.nodes[0].adapters:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not world.nodes[0].adapters
    assert world.verdicts() == []
