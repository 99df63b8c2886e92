"""The head is compared again with the harness that it replaced; failing prompts become tasks."""

from datetime import timedelta
from pathlib import Path

import pytest

from reefcommon.artifacts import describe
from reefcommon.events import RollbackRequested, SampleReady, utc_now
from reefcommon.harness.files import write_tree
from reefcommon.harness.tree import Entry
from reefkit.artifacts.git import GitArtifactStore
from reefkit.redis_heads import RedisReleaseHeads
from services.evaluator.redis_evidence import RedisEvidence
from tests.evaluator.conftest import TASKS, World, candidate

pytestmark = pytest.mark.redis


def stored(world: World, name: str, text: str) -> str:
    if not isinstance(world.store, GitArtifactStore):
        world.store = GitArtifactStore(world.state / "artifacts.git")  # type: ignore[assignment]
    tree = Path(world.state / f"tree-{name}")
    tree.mkdir()
    write_tree((Entry("r", "rules", {"text": text}),), tree)
    manifest = describe(tree, "harness")
    world.store.put(tree, manifest, "default")
    return manifest.content_id


async def served(world: World, **fields) -> None:
    """A harness release, whose parent has another harness."""
    before = stored(world, "before", "Answer at length.")
    await world.advance("r1-000000", moves="harness", harness=before)
    after = stored(world, "after", "Answer in a word.")
    assert world.head is not None
    world.head = world.head.model_copy(
        update={
            "release_id": "r2-000000", "sequence": 2, "parent_id": "r1-000000", "kind": "harness",
            "operation": "harness", "content_id": after, "contents": {"base": "base", "harness": after},
            **fields,
        }
    )  # fmt: skip
    await RedisReleaseHeads(world.redis).advance(world.head)


def answers(better: str):
    return lambda _model, messages, _seed, _i: "long" if better in str(messages[0]) else "x"


async def test_a_head_that_lost_is_rolled_back_once_and_by_command(world: World) -> None:
    world.text = TASKS + ", recheck_after_s: 60}"
    await served(world, created_at=utc_now() - timedelta(seconds=90))
    world.nodes[0].answer = answers("at length")
    for _ in range(3):  # a repeat, and a fresh process, ask for nothing more
        await world.look()
    (command,) = world.events.of(RollbackRequested)
    assert (command.release_id, command.expected_head) == ("r1-000000", "r2-000000")
    assert "recheck 1: r2-000000 lost against r1-000000" in command.reason
    assert "5 wins" in command.reason
    await RedisEvidence(world.redis).set_rechecks("default", "r2-000000", 0)  # killed before it
    await world.look()
    assert {one.event_id for one in world.events.of(RollbackRequested)} == {command.event_id}


@pytest.mark.parametrize(
    ("better", "fields"),
    [
        ("in a word", {}),  # the head is better
        ("nobody", {}),  # equal: chance brings nothing back
        ("at length", {"operation": "rollback"}),  # two harnesses do not take turns
        ("at length", {"created_at": utc_now() + timedelta(hours=1)}),  # not yet
    ],
)
async def test_a_head_stays(world: World, better: str, fields: dict) -> None:
    world.text = TASKS + ", recheck_after_s: 60}"
    await served(world, **({"created_at": utc_now() - timedelta(seconds=90)} | fields))
    world.nodes[0].answer = answers(better)
    await world.look()
    assert world.events.of(RollbackRequested) == []


async def test_what_cannot_be_run_again_is_no_loss(world: World) -> None:
    world.text = TASKS + ", recheck_after_s: 60, policy: floor, floor_score: 3}"
    await served(world, created_at=utc_now() - timedelta(seconds=90))
    world.nodes[0].answer = answers("at length")
    world.nodes[0].fails = {"reef": 99}
    await world.look()
    assert world.events.of(RollbackRequested) == []
    assert await RedisEvidence(world.redis).rechecks("default", "r2-000000") == 1


async def test_verdicts_make_a_recheck_due(world: World) -> None:
    world.text = TASKS + ", recheck_every: 2}"
    await served(world)
    world.nodes[0].answer = answers("at length")
    other = stored(world, "other", "Answer somehow.")
    for seed in "ab":
        assert world.events.of(RollbackRequested) == []
        await world.on_candidate(
            candidate(seed, base="r2-000000", kind="harness", content_id=other)
        )
    assert len(world.events.of(RollbackRequested)) == 1


async def test_a_floor_looks_at_the_candidate_alone(world: World) -> None:
    content = stored(world, "tree", "Answer at length.")
    world.nodes[0].answer = lambda _m, messages, _s, _i: (
        "x" if "length" in str(messages) else "long"
    )
    for floor, verdict in ((0.5, "select"), (2.0, "reject")):
        world.text = TASKS + f", policy: floor, floor_score: {floor}}}"
        found = await world.verdict(candidate(verdict, kind="harness", content_id=content))
        assert (found.verdict, found.losses) == (verdict, 5)


def failing(number: int, text: str, client: str = "", score: float = 0.0) -> SampleReady:
    return SampleReady(
        event_id=f"smp-{number}", at=utc_now(), scenario="default", record_ids=(f"rec-{number}",),
        score=score, feedback="too short", tags={"client": client} if client else {},
        messages=({"role": "user", "content": text}, {"role": "assistant", "content": "x"}),
        recorded_at=utc_now(),
    )  # fmt: skip


async def test_failing_prompts_become_tasks_within_bounds(world: World) -> None:
    more = "promote_failures: true, max_promoted_tasks: 3, max_promoted_per_client: 2"
    world.text = f"{TASKS}, {more}}}"
    process = await world.process()
    for number, client in enumerate(("a", "a", "a", "b", "c")):
        await process.on_sample(failing(number, f"prompt {number}", client))
    await process.on_sample(failing(9, "prompt 0", "d"))  # the same prompt
    await process.on_sample(failing(10, "fine", "e", score=1.0))
    kept = await RedisEvidence(world.redis).promoted("default")
    assert sorted(task.messages[0]["content"] for task in kept) == [
        "prompt 0", "prompt 1", "prompt 3",
    ]  # fmt: skip
    content = stored(world, "tree", "Answer at length.")
    world.nodes[0].answer = answers("at length")
    found = await world.verdict(candidate(kind="harness", content_id=content))
    assert found.wins == 8
    assert sum(task.task.startswith("promoted-") for task in found.tasks) == 3


async def test_a_prompt_whose_answer_the_verifier_cannot_score_is_no_task(world: World) -> None:
    world.text = (
        "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}\nevaluation: {tasks: [one, two, three, four,"
        " five], score: 'tests.evaluator.verifiers:of_texts', promote_failures: true}"
    )
    await (await world.process()).on_sample(failing(1, "prompt"))
    assert await RedisEvidence(world.redis).promoted("default") == []
