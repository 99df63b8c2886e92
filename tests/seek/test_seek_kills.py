"""A seeker that is killed anywhere: each question asked, answered and reported exactly once, and the state goes on."""

import json

import pytest

from tests.seek.rig import ROLLOUTS, STEPS, SeekRig
from tests.seek.world import World

GRID = STEPS * ROLLOUTS


def check(rig: SeekRig, world: World) -> None:
    assert len(world.computed) == GRID
    assert set(world.computed.values()) == {1}, "each question has a single answer"
    assert len(world.reports) == len(world.units) == GRID
    history = json.loads(rig.state("history"))
    assert [(step, end) for step, end, _ in history] == [(n, "published") for n in range(STEPS)]
    texts = [text for _, _, texts in history for text in texts]
    kept = [
        json.loads(answer)["choices"][0]["message"]["content"]
        for _, answer in world.answers.values()
    ]
    assert sorted(texts) == sorted(kept), "the answers that the seeker saw are those of the gateway"
    scores = {body["references"][0]: body["score"] for body in world.reports.values()}
    for key, (_, answer) in world.answers.items():
        content = json.loads(answer)["choices"][0]["message"]["content"]
        assert scores[key] == len(content)
    assert rig.store.counts("jobs", rig.loop.binding.key) == {"published": STEPS}


async def test_a_grid_is_asked_reported_and_learned(tmp_path):
    world = World()
    rig = SeekRig(tmp_path, world)
    assert await rig.live()
    check(rig, world)
    assert rig.loop.facts()["seek"]["state"] == "done"
    assert len(world.requests) == 2 * GRID
    asked = [request for request in world.requests if request.url.path != "/reef/report"]
    assert {request.headers["x-reef-scenario"] for request in asked} == {"default"}
    assert {request.headers["x-reef-tag-step"] for request in asked} == {"0", "1", "2"}
    assert len({request.headers["x-reef-tag-session"] for request in asked}) == GRID
    assert {json.loads(request.content)["priority"] for request in asked} == {10}
    rig.store.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 2 * GRID + 1, 3))
async def test_killed_at_any_question_or_report(tmp_path, at, after):
    world = World(kill_at=at, after=after)
    rig = SeekRig(tmp_path, world)
    assert not await rig.live()
    rig.restart()
    assert await rig.live()
    check(rig, world)
    rig.store.close()


async def test_killed_again_and_again(tmp_path):
    world = World()
    rig = SeekRig(tmp_path, world, in_flight=2)
    lives = 0
    while True:
        lives += 1
        world.kill_at = world.effects + 4 + 3 * lives
        world.after = bool(lives % 2)
        if await rig.live():
            break
        rig.restart()
    assert lives >= 3
    check(rig, world)
    rig.store.close()


@pytest.mark.parametrize("state", ["announced", "published"])
async def test_learned_returns_after_a_kill_while_it_waited(tmp_path, state):
    world = World()
    judge, world.judge = world.judge, lambda _candidate: world.killed.set()
    rig = SeekRig(tmp_path, world)
    assert not await rig.live(), "killed when the first candidate was out"
    assert len(world.reports) == ROLLOUTS
    world.judge = judge
    if state == "published":  # the verdict came while no host was there
        for candidate in rig.bus.candidates:
            judge(candidate)
    rig.restart()
    assert await rig.live()
    check(rig, world)
    rig.store.close()
