"""What people ask of the chain: roll back, promote, review."""

import asyncio
import time
from typing import Any

import pytest

from reefcommon.config import parse
from reefcommon.evaluation import bound
from reefcommon.events import (
    HoldRequested,
    Kind,
    PromoteRequested,
    Release,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    utc_now,
)
from reefcommon.releases import LOAD_GROUPS, loads_of
from services.publisher import publication
from services.publisher.domain.releases import needs_review
from tests.publisher.conftest import CONFIG, REVIEWED, World
from tests.publisher.fakes import Fuse, Killed, evaluated

pytestmark = pytest.mark.redis


def rollback(release_id: str, command: str = "cmd-1") -> RollbackRequested:
    return RollbackRequested(
        event_id=command, at=utc_now(), scenario="default", release_id=release_id
    )


def promote(release_id: str, command: str = "cmd-1") -> PromoteRequested:
    return PromoteRequested(
        event_id=command, at=utc_now(), scenario="default", release_id=release_id
    )


def hold(reason: str | None, command: str = "cmd-hold") -> HoldRequested:
    return HoldRequested(event_id=command, at=utc_now(), scenario="default", reason=reason)


async def test_a_rollback_is_a_new_release_with_an_old_content(world: World) -> None:
    upkeep = await world.started()
    old = await world.publish(upkeep, "a")
    new = await world.publish(upkeep, "b")
    loads = [list(node.loads) for node in world.nodes]
    started = time.perf_counter()
    for _ in range(2):
        await world.command(upkeep, rollback(old.release_id))
    assert time.perf_counter() - started < 2
    head = await world.head()
    assert (head.parent_id, head.operation, head.sequence) == (
        new.release_id,
        "rollback",
        new.sequence + 1,
    )
    assert (head.content_id, head.contents, head.adapter) == (
        old.content_id,
        old.contents,
        old.adapter,
    )
    assert head.release_id not in {old.release_id, new.release_id}
    assert [list(node.loads) for node in world.nodes] == loads, (
        "a resident adapter is used as it is"
    )
    assert world.events.of(ReleasePublished)[-1].command_id == "cmd-1"
    assert len(await world.heads.chain("default")) == 4


async def test_a_rollback_meant_for_another_head_is_refused(world: World) -> None:
    upkeep = await world.started()
    old = await world.publish(upkeep, "a")
    lost = await world.publish(upkeep, "b")
    meant = rollback(old.release_id).model_copy(update={"expected_head": lost.release_id})
    newer = await world.publish(upkeep, "c")
    await world.command(upkeep, meant)
    assert (await world.head()).release_id == newer.release_id
    ((outcome, reason),) = world.rejections()
    assert outcome == "conflicted"
    assert f"meant for {lost.release_id}" in reason
    own = meant.model_copy(update={"event_id": "cmd-2", "expected_head": newer.release_id})
    await world.command(upkeep, own)
    assert (await world.head()).contents == old.contents


async def test_a_rollback_to_what_was_unloaded_long_ago(world: World) -> None:
    upkeep = await world.started()
    old = await world.publish(upkeep, "old")
    for i in range(4):
        await world.publish(upkeep, f"later-{i}")
    assert all(old.adapter not in node.adapters for node in world.nodes)
    await world.command(upkeep, rollback(old.release_id))
    assert (await world.head()).adapter == old.adapter
    assert all(old.adapter in node.adapters for node in world.nodes)
    await upkeep.round()
    assert all(old.adapter in node.adapters for node in world.nodes)


async def test_a_rollback_to_the_base_model(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    await world.publish(upkeep, "a")
    await world.command(upkeep, rollback(root.release_id))
    head = await world.head()
    assert (head.kind, head.adapter, head.contents) == ("base", None, {"base": "base"})
    after = await world.publish(upkeep, "c")
    assert after.parent_id == head.release_id


@pytest.mark.parametrize("what", ["unknown", "head", "pending"])
async def test_a_rollback_that_leads_nowhere(world: World, what: str) -> None:
    world.config = REVIEWED
    upkeep = await world.started()
    await upkeep.handlers.on_evaluated(evaluated("default", (await world.head()).release_id))
    target = {
        "unknown": "r7-abcdef",
        "head": (await world.head()).release_id,
        "pending": (await world.heads.pending("default"))[0].release_id,
    }[what]
    await world.command(upkeep, rollback(target))
    [event] = world.events.of(ReleaseRejected)
    assert (event.outcome, event.command_id) == ("aborted", "cmd-1")
    words = {
        "unknown": "not in the chain",
        "head": "is the head already",
        "pending": "waits for review: promote it",
    }[what]
    assert words in event.reason
    assert len(await world.heads.chain("default")) == 1


async def test_a_rollback_wins_over_whoever_moves_the_head_meanwhile(world: World) -> None:
    upkeep = await world.started()
    old = await world.publish(upkeep, "a")
    await world.publish(upkeep, "b")
    inner = upkeep.runner.heads._inner  # type: ignore[attr-defined]
    original, rivals = inner.advance, iter("cd")

    async def overtaken(release: object) -> None:
        seed = next(rivals, None)
        if seed is not None:
            await world.publish(await world.started(), seed)
        await original(release)

    inner.advance = overtaken
    await world.command(upkeep, rollback(old.release_id))
    chain = await world.heads.chain("default")
    assert [release.operation for release in chain] == [
        "rollback",
        "training",
        "training",
        "training",
        "training",
        "creation",
    ]
    assert chain[0].contents == old.contents
    assert all(old.adapter in node.adapters for node in world.nodes)


async def test_a_rollback_that_another_process_finished_is_not_repeated(world: World) -> None:
    """Both had looked when neither had begun; the later of them plans on the head that the earlier
    has made.
    """
    upkeep = await world.started()
    old = await world.publish(upkeep, "a")
    await world.publish(upkeep, "b")
    late: Any = await world.started()
    release = late.handlers.heads.release

    async def overtaken(*args: str) -> object:
        await world.command(upkeep, rollback(old.release_id))
        return await release(*args)

    late.handlers.heads.release = overtaken
    await world.command(late, rollback(old.release_id))
    assert [release.operation for release in await world.heads.chain("default")] == [
        "rollback",
        "training",
        "training",
        "creation",
    ]


async def test_a_rollback_resumed_and_redelivered_is_made_once(world: World) -> None:
    """The head moved while its process was away, so it is planned anew: from where the other run
    left off, not from its beginning.
    """
    upkeep = await world.started()
    old = await world.publish(upkeep, "a")
    await world.publish(upkeep, "b")
    with pytest.raises(Killed):
        await world.command(world.process(Fuse(left=0, after=True)), rollback(old.release_id))
    await world.publish(upkeep, "c")
    [begun], fuse = await upkeep.runner.works.live(), Fuse()
    process = world.process(fuse).runner
    await asyncio.gather(*(process.run(begun) for _ in range(2)))
    chain = await world.heads.chain("default")
    assert [release.operation for release in chain] == [
        "rollback",
        "training",
        "training",
        "training",
        "creation",
    ]
    # the plan that had become stale, the new one, and its repeat before the announcement
    assert fuse.calls.count("advance") == 3


async def test_a_rollback_gives_up_where_the_head_never_rests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "MAX_REBASES", 1)
    upkeep = await world.started()
    root = await world.head()
    await world.publish(upkeep, "a")
    heads: Any = upkeep.runner.heads
    original, rivals = heads._inner.advance, iter("bc")

    async def overtaken(release: object) -> None:
        seed = next(rivals, None)
        if seed is not None:
            await world.publish(await world.started(), seed)
        await original(release)

    heads._inner.advance = overtaken
    await world.command(upkeep, rollback(root.release_id))
    assert "rollback" not in {release.operation for release in await world.heads.chain("default")}
    assert [(event.outcome, event.command_id) for event in world.events.of(ReleaseRejected)] == [
        ("conflicted", "cmd-1")
    ]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", range(14))
async def test_a_rollback_killed_at_any_effect(world: World, effect: int, when: str) -> None:
    upkeep = await world.started()
    old = await world.publish(upkeep, "a")
    await world.publish(upkeep, "b")
    fuse = Fuse(left=effect, after=when == "after")
    try:
        await world.command(world.process(fuse), rollback(old.release_id))
    except Killed:
        survivor = await world.started()
        await survivor.handlers.resume()
        await world.command(survivor, rollback(old.release_id))
    else:
        assert effect >= len(fuse.calls)
    chain = await world.heads.chain("default")
    assert [release.operation for release in chain] == [
        "rollback",
        "training",
        "training",
        "creation",
    ]
    assert {event.event_id for event in world.events.of(ReleasePublished)} == {
        release.release_id for release in chain
    }


async def test_a_winner_of_a_held_scenario_waits(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    await world.command(upkeep, hold("until Monday"))
    await upkeep.handlers.on_evaluated(evaluated("default", root.release_id))
    assert await world.head() == root
    [pending] = await world.heads.pending("default")
    await world.command(upkeep, hold(None))
    assert await world.head() == root, "a person may have seen it: it waits for a promotion"
    await world.command(upkeep, promote(pending.release_id))
    head = await world.head()
    assert head.release_id == pending.release_id
    event = evaluated("default", head.release_id, "b")
    await upkeep.handlers.on_evaluated(event)
    assert (await world.head()).candidate_id == event.candidate.event_id, "the next winner serves"


async def test_a_winner_in_review_mode_waits(world: World) -> None:
    """H4: the head is unchanged and nodes and clients see nothing until it is promoted."""
    world.config = REVIEWED
    upkeep = await world.started()
    root = await world.head()
    event = evaluated("default", root.release_id)
    for _ in range(2):
        await upkeep.handlers.on_evaluated(event)
    assert await world.head() == root
    assert all(not node.loads for node in world.nodes)
    [pending] = await world.heads.pending("default")
    assert [sent.release for sent in world.events.of(ReleasePending)] == [pending]
    await world.command(upkeep, promote(pending.release_id))
    head = await world.head()
    assert (head.release_id, head.operation, head.candidate_id) == (
        pending.release_id,
        "promote",
        event.candidate.event_id,
    )
    assert await world.heads.pending("default") == []
    assert all(list(node.adapters) == [head.adapter] for node in world.nodes)
    await world.command(upkeep, promote(pending.release_id))
    await world.command(upkeep, promote(pending.release_id, "cmd-2"))
    assert len(await world.heads.chain("default")) == 2
    assert [(event.command_id, event.outcome) for event in world.events.of(ReleaseRejected)] == [
        ("cmd-2", "aborted")
    ]


async def test_a_promotion_that_comes_too_late(world: World) -> None:
    world.config = REVIEWED
    upkeep = await world.started()
    root = await world.head()
    first, second = (evaluated("default", root.release_id, seed) for seed in "ab")
    for event in (first, second):
        await upkeep.handlers.on_evaluated(event)
    by_candidate = {
        release.candidate_id: release for release in await world.heads.pending("default")
    }
    await world.command(upkeep, promote(by_candidate[first.candidate.event_id].release_id))
    head = await world.head()
    await world.command(
        upkeep, promote(by_candidate[second.candidate.event_id].release_id, "cmd-2")
    )
    assert await world.head() == head
    [event] = world.events.of(ReleaseRejected)
    assert (event.outcome, event.candidate_id, event.command_id) == (
        "conflicted",
        second.candidate.event_id,
        "cmd-2",
    )
    assert await world.heads.pending("default") == []


async def reviewed(world: World, *kinds: Kind) -> list[Release]:
    """Winners of these kinds that wait, all made from the first release."""
    world.config = REVIEWED
    upkeep, root = await world.started(), await world.head()
    for kind in kinds:
        await upkeep.handlers.on_evaluated(evaluated("default", root.release_id, kind, kind=kind))
    waiting = {release.kind: release for release in await world.heads.pending("default")}
    return [waiting[kind] for kind in kinds]


@pytest.mark.parametrize(
    ("late", "early"), [("lora", "harness"), ("harness", "lora"), ("solution", "lora")]
)
async def test_a_promotion_keeps_what_other_kinds_have_moved(
    world: World, late: Kind, early: Kind
) -> None:
    waits, first = await reviewed(world, late, early)
    upkeep = await world.started()
    await world.command(upkeep, promote(first.release_id))
    parent = await world.head()
    for _ in range(2):
        await world.command(upkeep, promote(waits.release_id, "cmd-2"))
    head, lora = await world.head(), waits if late == "lora" else first
    assert (head.release_id, head.parent_id, head.sequence) == (
        waits.release_id,
        parent.release_id,
        parent.sequence + 1,
    )
    assert head.contents == parent.contents | {late: waits.content_id}
    assert (head.adapter, head.candidate_id) == (lora.adapter, waits.candidate_id)
    assert loads_of(head) == loads_of(parent) | {
        LOAD_GROUPS[late]: loads_of(waits)[LOAD_GROUPS[late]]
    }
    assert all(list(node.adapters) == [lora.adapter] for node in world.nodes)
    assert world.rejections() == []
    chain = await world.heads.chain("default")
    await world.redis.flushdb()
    await world.started()
    assert await world.heads.chain("default") == chain
    assert await world.heads.pending("default") == []


@pytest.mark.parametrize("rival", ["harness", "checkpoint", "lora"])
async def test_a_promotion_that_is_overtaken(world: World, rival: Kind) -> None:
    waits, *_ = await reviewed(world, "lora")
    world.config = CONFIG
    upkeep = await world.started()
    heads = upkeep.runner.heads._inner  # type: ignore[attr-defined]
    advance = heads.advance

    async def overtaken(release: Release) -> None:
        heads.advance = advance
        await world.publish(await world.started(), "rival", kind=rival)
        await advance(release)

    heads.advance = overtaken
    await world.command(upkeep, promote(waits.release_id))
    head = await world.head()
    if rival == "harness":
        assert (head.release_id, {"lora", "harness"} <= head.contents.keys()) == (
            waits.release_id,
            True,
        )
        assert all(head.adapter in node.adapters for node in world.nodes)
    else:
        assert head.kind == rival
        assert [outcome for outcome, _ in world.rejections()] == ["conflicted"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", range(14))
async def test_a_promotion_on_a_moved_head_killed_at_any_effect(
    world: World, effect: int, when: str
) -> None:
    waits, first = await reviewed(world, "lora", "harness")
    await world.command(await world.started(), promote(first.release_id))
    fuse = Fuse(left=effect, after=when == "after")
    try:
        await world.command(world.process(fuse), promote(waits.release_id, "cmd-2"))
    except Killed:
        survivor = await world.started()
        await survivor.handlers.resume()
        await world.command(survivor, promote(waits.release_id, "cmd-2"))
    else:
        assert effect >= len(fuse.calls)
    chain = await world.heads.chain("default")
    assert [release.release_id for release in chain][:2] == [waits.release_id, first.release_id]
    assert len({event.event_id for event in world.events.of(ReleasePublished)}) == len(chain) == 3
    assert (world.rejections(), await world.heads.pending("default")) == ([], [])


async def test_two_promotions_at_once(world: World) -> None:
    world.config = REVIEWED
    upkeep = await world.started()
    root = await world.head()
    for seed in "ab":
        await upkeep.handlers.on_evaluated(evaluated("default", root.release_id, seed))
    waiting = await world.heads.pending("default")
    await asyncio.gather(
        *(
            world.command(world.process(), promote(release.release_id, f"cmd-{release.release_id}"))
            for release in waiting
        )
    )
    assert len(await world.heads.chain("default")) == 2
    assert [event.outcome for event in world.events.of(ReleaseRejected)] == ["conflicted"]
    for node in world.nodes:
        assert list(node.adapters) == [(await world.head()).adapter]


def test_whose_winners_wait() -> None:
    sao, grpo = "recipes.sao.recipe:SAORecipe", "recipes.grpo.recipe:GRPORecipe"
    config = parse(
        f"reef:\n- {{recipe: '{sao}', scenario: one, review: manual}}\n- {{recipe: '{grpo}', scenario: one}}\n"
        f"- {{recipe: '{sao}', scenario: two}}\nscenarios: [three]\n"
    )
    asked = [
        ("one", sao),
        ("one", "sao"),
        ("one", "grpo"),
        ("one", "stranger"),
        ("two", "sao"),
        ("two", "stranger"),
        ("three", "sao"),
    ]
    found = [
        needs_review(config, scenario, bound(config, scenario, recipe))
        for scenario, recipe in asked
    ]
    assert found == [True, True, False, True, False, False, False]
