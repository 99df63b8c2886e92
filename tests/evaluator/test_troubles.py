"""Evaluations that something gets in the way of: no verdict is made up."""

import asyncio
import math
from typing import Any

import pytest

from reefcommon.errors import Transient, Unavailable
from reefkit.redis_rotation import RedisRotation
from services.evaluator.bench import trial_name
from tests.evaluator.conftest import TASKS, EpisodeNode, World, candidate

pytestmark = pytest.mark.redis


PLACES = ("load", "probe", "cand", "reef")


@pytest.mark.parametrize("failing", [*((place,) for place in PLACES), PLACES], ids="+".join)
async def test_an_engine_that_fails_now_and_then(world: World, failing: tuple[str, ...]) -> None:
    """T5: whatever failed is tried again, and never scored as 0; the verdict is the one of an
    engine that never fails.
    """
    node = world.nodes[0]
    node.fails, node.failure = dict.fromkeys(failing, 2), Transient
    found = await world.verdict(candidate())
    assert not any(node.fails.values()), "it did fail"
    assert (found.verdict, found.candidate_score, found.head_score, found.failed_episodes) == (
        "select",
        4.0,
        1.0,
        0,
    )
    assert [(task.candidate, task.head) for task in found.tasks] == [(4.0, 1.0)] * 5


@pytest.mark.parametrize("side", ["cand", "reef"])
async def test_an_episode_without_an_answer_is_tried_again(world: World, side: str) -> None:
    """T5: the same where the engine says nothing at all."""
    world.nodes[0].fails = {side: 2}
    found = await world.verdict(candidate())
    assert not any(world.nodes[0].fails.values())
    assert (found.verdict, found.candidate_score, found.head_score, found.failed_episodes) == (
        "select",
        4.0,
        1.0,
        0,
    )


@pytest.mark.parametrize("error", [Transient, Unavailable])
@pytest.mark.parametrize("side", ["cand", "reef"])
async def test_an_engine_that_goes_on_failing(
    world: World, side: str, error: type[Exception]
) -> None:
    """T5: then the evaluation has failed, whichever side it was, and no score is made up."""
    world.nodes[0].fails, world.nodes[0].failure = {side: math.inf}, error
    found = await world.verdict(candidate())
    assert (found.verdict, found.failed_episodes) == ("evaluation_failed", 5)
    assert f"failed at {side} (tried 3 times)" in found.reason
    assert found.candidate_score is found.head_score is None
    ours, heads = (None, 1.0) if side == "cand" else (4.0, None)
    assert [(task.candidate, task.head) for task in found.tasks] == [(ours, heads)] * 5


@pytest.mark.parametrize("policy", ["score_comparison", "always"])
@pytest.mark.parametrize("place", ["load", "probe"])
async def test_an_engine_that_never_gets_a_candidate_to_answer(
    world: World, place: str, policy: str
) -> None:
    """T5: a verdict all the same; raised to the bus, the candidate would be a dead letter that its
    trainer waits for.
    """
    world.text = f"{TASKS}, policy: {policy}}}"
    world.nodes[0].fails, world.nodes[0].failure = {place: math.inf}, Transient
    found = await world.verdict(candidate())
    assert (found.verdict, found.candidate_score, found.tasks) == ("evaluation_failed", None, ())
    assert found.reason == f"does not serve: http://node-1 failed at {place} (tried 3 times)"
    assert not world.nodes[0].asked


async def test_a_disk_that_takes_no_content_now_and_then_or_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, fails = world.store.get, iter(range(2))

    def get(*args: Any) -> Any:
        if next(fails, None) is not None:
            raise Transient("cannot put it in place")
        return fetch(*args)

    monkeypatch.setattr(world.store, "get", get)
    assert (await world.verdict(candidate())).verdict == "select"
    fails = iter(range(1000))
    found = await world.verdict(candidate("b"))
    assert (found.verdict, found.reason) == (
        "evaluation_failed",
        "does not serve: cannot put it in place (tried 3 times)",
    )


@pytest.mark.parametrize(
    "policy", ["score_comparison", "no_regression", "always", "paired_confidence"]
)
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
    await world.on_candidate(candidate(), process)
    [found] = world.verdicts()
    assert found.verdict == "evaluation_failed"
    assert found.failed_episodes == 10
    assert all(task.candidate is None and task.head is None for task in found.tasks)
    assert not any("@cand-" in name for name in node.adapters)


@pytest.mark.parametrize(
    ("name", "words"), [("broken", "ZeroDivisionError: no"), ("nothing", "not a finite number")]
)
async def test_a_verifier_that_fails(world: World, name: str, words: str) -> None:
    """T5: a verifier's mistake is no score of 0.0."""
    world.text = TASKS.replace("verifiers:length", f"verifiers:{name}") + "}"
    found = await world.verdict(candidate())
    assert found.verdict == "evaluation_failed"
    assert words in found.reason
    assert found.failed_episodes == 10


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
        await world.on_candidate(candidate())
    assert world.verdicts() == []
    world.nodes[0].down = False
    assert (await world.verdict(candidate())).verdict == "select"


async def test_a_node_that_goes_away_during_an_episode_is_waited_for_once(world: World) -> None:
    """The candidate may have ended it: the second time is a failure."""
    node = world.nodes[0]
    answer = node.answer

    def dies(_model: str, _messages: Any, seed: int, _i: int) -> str:
        if not seed:  # the probe
            return "x"
        node.down = True
        raise Unavailable("killed")

    process = await world.process()
    for innocent in (True, False):
        event, node.answer = candidate(seed=f"innocent {innocent}"), dies
        before = len(world.verdicts())
        await world.on_candidate(event, process)
        assert len(world.verdicts()) == before
        node.down, node.answer = False, answer if innocent else dies
        await world.on_candidate(event, process)
        node.down = False
        (found,) = world.verdicts()[before:]
        assert found.verdict == ("select" if innocent else "evaluation_failed"), found.reason
    assert found.reason.startswith("the node went away in the trial: ")


@pytest.mark.parametrize("place", ["load", "probe"])
async def test_a_node_that_goes_away_during_a_trial_is_waited_for(world: World, place: str) -> None:
    """However often the event is tried: silence says nothing about the candidate."""
    world.nodes[0].fails = {place: math.inf}
    process = await world.process()
    for _ in range(10):
        with pytest.raises(Unavailable, match=f"failed at {place}"):
            await world.on_candidate(candidate(), process)
    assert world.verdicts() == []
    assert not world.nodes[0].adapters
    world.nodes[0].fails = {}
    assert (await world.verdict(candidate())).verdict == "select"


async def test_a_node_without_the_head_is_passed_over(world: World) -> None:
    await world.advance("r1-000000", adapter="default@r1-000000")
    world.nodes = [
        EpisodeNode("http://node-1"),
        EpisodeNode("http://node-2", adapters={"default@r1-000000": "/x"}),
    ]
    for seed in "abcd":
        assert (await world.verdict(candidate(seed, base="r1-000000"))).verdict == "select"
    assert not world.nodes[0].asked
    assert {model for model, _, _ in world.nodes[1].asked if "cand" not in model} == {
        "default@r1-000000"
    }


async def test_no_trial_is_held_on_a_node_apart_or_away(world: World) -> None:
    world.nodes = [EpisodeNode(f"http://node-{number}") for number in range(3)]
    world.nodes[1].down = True
    await RedisRotation(world.redis).set_apart(world.nodes[0].url, "it answers with other weights")
    for seed in "abcd":
        assert (await world.verdict(candidate(seed))).verdict == "select"
    assert [bool(node.asked) for node in world.nodes] == [False, False, True]


async def test_a_stale_verdict_removes_what_a_killed_trial_left(world: World) -> None:
    event = candidate()
    world.nodes[0].adapters[trial_name(event)] = "/left"
    await world.advance("r1-000000")
    assert (await world.verdict(event)).reason.startswith("stale_base")


async def test_cancelled_in_the_middle_it_leaves_nothing(world: World) -> None:
    hold = asyncio.Event()

    async def chat(*_: object, **__: object) -> object:
        await hold.wait()
        raise AssertionError

    world.nodes[0].chat = chat  # type: ignore[method-assign,assignment]
    process = await world.process()
    await process.on_candidate(candidate())
    while not world.nodes[0].adapters:
        await asyncio.sleep(0.01)
    await process.trials.close()
    assert not world.nodes[0].adapters
    assert world.verdicts() == []
    [kept] = await process.evidence.waiting("default")
    assert kept.event_id == candidate().event_id
