"""Harness candidates that an agent works with: paired runs, and runs that could not be made."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from reefcommon.artifacts import describe
from reefcommon.errors import BadConfig
from reefcommon.events import CandidateEvaluated
from reefcommon.harness.files import write_tree
from reefcommon.harness.tree import Entry
from reefkit.artifacts.git import GitArtifactStore
from services.evaluator.trials import ON_TRIAL
from tests.episodes.conftest import PROGRAM, Model, left_over, needs_bubblewrap
from tests.evaluator.conftest import World, candidate
from tests.publisher.fakes import FakeStore

pytestmark = pytest.mark.redis

TEXT = f"""
reef: {{recipe: 'recipes.feedback_rules.recipe:FeedbackRulesRecipe'}}
evaluation:
  tasks: [one, two, three, four, five]
  score: tests.evaluator.test_agent_episodes:label
  runner: agent
  agent: {{adapter: tests.episodes.standin, isolation: local, binary: {PROGRAM}, timeout_s: 90}}
"""
LABEL = "write label.txt OSLO\nWritten."
TALK = "I have written the label OSLO to label.txt."


def label(task, outcome) -> tuple[float, str]:
    """1 if the file is there. What the agent says does not count."""
    there = outcome.files.get("label.txt") == "OSLO"
    return float(there), "the label is there" if there else "there is no label"


@pytest.fixture
def agents(world: World, model: Model) -> World:
    world.text, world.gateway_url = TEXT, model.url
    world.store = GitArtifactStore(world.state / "artifacts.git")  # type: ignore[assignment]
    return world


def harness(world: World, rule: str) -> str:
    tree = world.state / f"tree-{len(rule)}"
    tree.mkdir()
    write_tree((Entry("r", "rules", {"text": rule}),), tree)
    manifest = describe(tree, "harness")
    world.store.put(tree, manifest, "default")
    return manifest.content_id


def obeys(rule: str, answer: str, otherwise: str = TALK) -> Callable[[list], str]:
    return lambda messages: answer if rule in messages[0]["content"] else otherwise


async def test_the_better_harness_wins_by_behaviour(agents: World, model: Model) -> None:
    model.answer = obeys("Write the label", LABEL)
    content = harness(agents, "Write the label to a file.")
    found = await agents.verdict(candidate(kind="harness", content_id=content))
    assert (found.verdict, found.wins, found.strength) == ("select", 5, "strong")
    assert found.p_value is not None
    assert found.p_value < 0.04
    first = found.tasks[0]
    assert (first.candidate, first.head) == (1.0, 0.0)
    assert (first.candidate_words, first.head_words) == ("the label is there", "there is no label")
    assert first.candidate_run is not None
    assert first.head_run is not None
    assert first.candidate_run.lines[:2] == ("user: one", "calls write(given=label.txt OSLO)")
    assert first.candidate_run.files == ("label.txt",)
    assert first.candidate_run.digest != first.head_run.digest
    assert agents.nodes[0].asked == [], "the agent asks the gateway"


async def test_a_substitute_that_only_talks_about_it_loses(
    agents: World,
    model: Model,
) -> None:
    substitute = harness(agents, "Say that the label was written.")
    model.answer = obeys("Say that", f"{TALK}\nlabel.txt: OSLO", otherwise="No.")
    found = await agents.verdict(candidate(kind="harness", content_id=substitute))
    assert (found.verdict, found.wins, found.ties) == ("reject", 0, 5)
    assert "label.txt: OSLO" in [task.candidate_answer for task in found.tasks]


async def test_an_episode_is_pinned_and_leaves_no_record(agents: World, model: Model) -> None:
    model.answer = obeys("Write", LABEL)
    content = harness(agents, "Write the label.")
    await agents.verdict(candidate(kind="harness", content_id=content))
    assert len(model.asked) == 10
    for path, headers, body in model.asked:
        assert path == "/v1/chat/completions"
        assert headers["x-reef-capture"] == "false"
        assert headers["x-reef-harness"] == "false"
        assert headers["x-reef-scenario"] == "default"
        assert headers["x-reef-release-id"] == "r0-000000"
        assert headers["x-reef-tag-episode"].startswith("cnd-")
        assert body["priority"] == 10


async def test_both_sides_take_turns(agents: World, model: Model) -> None:
    agents.text = TEXT.replace("timeout_s: 90", "timeout_s: 90, at_once: 1, repeats: 2")
    model.answer = obeys("Write", LABEL)
    content = harness(agents, "Write the label.")
    found = await agents.verdict(candidate(kind="harness", content_id=content))
    assert found.wins == 5
    sides = ["Write" in body["messages"][0]["content"] for _, _, body in model.asked]
    assert len(sides) == 20
    pairs = list(zip(sides[::2], sides[1::2], strict=True))
    assert pairs[:5] == [(True, False), (False, True), (True, False), (False, True), (True, False)]
    assert pairs[5] == (False, True)


async def test_t5_runs_that_fail_now_and_then_are_tried_again(
    agents: World,
    model: Model,
) -> None:
    """T5."""
    good, asked = obeys("Write", LABEL), set[str]()

    def fails_at_first(messages: list[dict[str, object]]) -> str | int:
        said = str(messages)
        if said in asked or "two" in said:
            return good(messages)
        asked.add(said)
        return 503 if "three" in said else 500

    model.answer = fails_at_first
    content = harness(agents, "Write the label.")
    found = await agents.verdict(candidate(kind="harness", content_id=content))
    assert (found.verdict, found.wins, found.failed_episodes) == ("select", 5, 0)
    assert len(asked) == 8

    model.answer = lambda messages: 500 if "three" in str(messages) else good(messages)
    found = await agents.verdict(candidate("b", kind="harness", content_id=content))
    assert (found.verdict, found.failed_episodes) == ("evaluation_failed", 2)
    assert "three" in found.reason
    assert [task.candidate for task in found.tasks] == [1.0, 1.0, None, 1.0, 1.0]


async def test_t6_runs_that_all_fail_to_start_are_no_tie(agents: World, model: Model) -> None:
    """T6."""
    program = agents.state / "agent"
    program.write_text("#!/no/such/program\n")
    program.chmod(0o755)
    agents.text = TEXT.replace(str(PROGRAM), str(program)) + "  policy: no_regression\n"
    content = harness(agents, "Write the label.")
    found = await agents.verdict(candidate(kind="harness", content_id=content))
    assert (found.verdict, found.failed_episodes) == ("evaluation_failed", 10)
    assert "10 episodes failed" in found.reason
    assert all(task.candidate is None and task.head is None for task in found.tasks)
    assert model.asked == []


@pytest.mark.parametrize(("code", "tries"), [(3, 1), (137, 3)], ids=["broken", "killed"])
async def test_a_broken_program_is_tried_once_an_episode(
    agents: World, model: Model, code: int, tries: int
) -> None:
    program, starts = agents.state / "agent", agents.state / "starts"
    program.write_text(f"#!/bin/sh\necho x >> '{starts}'\nexit {code}\n")
    program.chmod(0o755)
    agents.text = TEXT.replace(str(PROGRAM), str(program))
    content = harness(agents, "Write the label.")
    found = await agents.verdict(candidate(kind="harness", content_id=content))
    assert (found.verdict, found.failed_episodes) == ("evaluation_failed", 10)
    assert starts.read_text().count("x") == 10 * tries
    assert model.asked == []


async def test_an_endless_agent_loses_and_is_not_tried_again(agents: World, model: Model) -> None:
    agents.text = TEXT.replace("timeout_s: 90", "timeout_s: 8, at_once: 5")
    model.answer = obeys("Loop", "loop", otherwise=LABEL)
    content = harness(agents, "Loop for ever.")
    found = await agents.verdict(candidate(kind="harness", content_id=content))
    assert (found.verdict, found.losses) == ("reject", 5)
    assert found.tasks[0].candidate_run is not None
    assert found.tasks[0].candidate_run.status == "timeout"
    assert len(model.asked) == 10


@needs_bubblewrap
async def test_h3_a_candidate_waits_if_the_isolation_is_away(
    agents: World,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H3."""
    agents.text = TEXT.replace("isolation: local", "isolation: bubblewrap")
    process = await agents.process()
    content = harness(agents, "Write the label.")
    monkeypatch.setenv("PATH", str(tmp_path))
    await process.on_candidate(candidate(kind="harness", content_id=content))
    await process.trials.settled()
    assert "bubblewrap cannot be used here" in process.trials.waiting()[0].reason
    assert agents.verdicts() == []
    with pytest.raises(BadConfig, match="bubblewrap"):
        await agents.process()
    monkeypatch.undo()
    model.answer = obeys("Write", LABEL)
    await agents.look(process)
    assert [verdict.verdict for verdict in agents.verdicts()] == ["select"]


async def test_a_slow_run_holds_up_no_other_scenario(agents: World, model: Model) -> None:
    good = obeys("Write", LABEL)
    model.answer = lambda messages: "loop" if "slow" in messages[1]["content"] else good(messages)
    agents.text = TEXT.replace(
        "[one, two, three, four, five]",
        "{default: [slow, two, three, four, five], other: [one, two, three, four, five]}",
    ).replace("reef:", "scenarios: [other]\nreef:")
    assert agents.head is not None
    other = agents.head.model_copy(update={"scenario": "other"})
    process = await agents.process()
    await process.trials.comparer.heads.advance(other)  # type: ignore[attr-defined]
    content = harness(agents, "Write the label.")
    source = agents.state / f"tree-{len('Write the label.')}"
    agents.store.put(source, describe(source, "harness"), "other")
    slow = candidate(kind="harness", content_id=content)
    quick = candidate("b", kind="harness", content_id=content)
    await process.on_candidate(slow)
    await process.on_candidate(quick.model_copy(update={"scenario": "other"}))
    try:
        async with asyncio.timeout(60):
            while not agents.verdicts():
                await asyncio.sleep(0.05)
        assert [event.scenario for event in agents.events.of(CandidateEvaluated)] == ["other"]
        assert process.trials.waiting()[0].reason == ON_TRIAL
        assert process.trials.waiting()[0].scenario == "default"
    finally:
        await process.trials.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("tests.episodes.standin", "tests.episodes"), "no agent"),
        ((str(PROGRAM), "/no/such/agent"), "is no program"),
        (("isolation: local", "isolation: none"), "isolation"),
        (("runner: agent", "runner: robot"), "chat, program, agent"),
    ],
)
async def test_a_mistake_is_named_at_the_start(
    agents: World, change: tuple[str, str], says: str
) -> None:
    agents.text = TEXT.replace(*change)
    with pytest.raises(BadConfig, match=says):
        await agents.process()


async def test_weights_are_tried_on_their_node(agents: World, model: Model) -> None:
    agents.nodes[0].url = model.url
    agents.store = FakeStore()
    model.answer = lambda _messages: LABEL if "cand" in model.asked[-1][2]["model"] else TALK
    agents.text = TEXT.replace("90}", "90, at_once: 1}")
    found = await agents.verdict(candidate())
    assert (found.verdict, found.wins) == ("select", 5)
    names = {body["model"] for _, _, body in model.asked}
    assert len(names) == 2
    assert "reef" in names
    assert not any("x-reef-scenario" in headers for _, headers, _ in model.asked)


async def test_a_process_that_ends_in_a_run_leaves_it_to_the_next(
    agents: World, model: Model
) -> None:
    model.answer = lambda _messages: "fork\nloop"
    content = harness(agents, "Write the label.")
    first = await agents.process()
    await first.on_candidate(candidate(kind="harness", content_id=content))
    async with asyncio.timeout(60):
        while not left_over():
            await asyncio.sleep(0.05)
    await first.trials.close()
    async with asyncio.timeout(60):
        while left_over() or list((agents.state / "episodes").iterdir()):
            await asyncio.sleep(0.05)
    model.answer = obeys("Write", LABEL)
    await agents.look()
    assert [verdict.verdict for verdict in agents.verdicts()] == ["select"]
    assert await agents.look() == []
    assert len(agents.verdicts()) == 1
