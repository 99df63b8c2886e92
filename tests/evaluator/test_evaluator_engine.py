"""The evaluator's two methods on the real serving node with the tiny model, through the client that
production uses.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from reefcommon.artifacts import describe
from reefcommon.evaluation import is_held_out
from reefkit.artifacts.git import GitArtifactStore
from reefkit.serving_http import HttpServingNode
from tests.engine.conftest import Node, save_adapter, serving
from tests.evaluator.conftest import REPLAY, World, candidate, scored

pytestmark = [pytest.mark.engine, pytest.mark.redis]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    from reefstack.models import prepare

    with serving(prepare("tiny", tmp_path_factory.mktemp("models"))) as running:
        yield running


@pytest.fixture
async def served(world: World, engine: Node, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The world of the other tests, with the real node and a stored adapter; yields (world, content
    id, node).
    """
    from services.engine.runner import load_model

    monkeypatch.setenv("REEF_MODEL_NAME", "base")
    store = GitArtifactStore(world.state / "artifacts.git")
    tree = world.state / "adapter"
    save_adapter(
        load_model(Path(engine.engine.settings.model_path), 1),
        tree,
        ["q_proj", "v_proj", "lm_head"],
        7,
    )
    manifest = describe(tree, "lora")
    store.put(tree, manifest, "default")
    world.store = store  # type: ignore[assignment]
    async with aiohttp.ClientSession() as session:
        node = HttpServingNode(engine.url, session)
        world.nodes = [node]  # type: ignore[list-item]
        world.within_s = 60  # a real node, beside other work
        yield world, manifest.content_id, node


async def test_tasks(served: tuple[World, str, HttpServingNode]) -> None:
    world, content_id, node = served
    await world.on_candidate(candidate(content_id=content_id))
    await world.on_candidate(candidate(content_id=content_id))
    first, second = world.verdicts()
    assert first.verdict in ("select", "reject"), first.reason
    assert first.failed_episodes == 0
    assert first.tasks == second.tasks, "the same seeds give the same answers"
    assert any(task.candidate_answer != task.head_answer for task in first.tasks)
    assert set(await node.models()) == {"base"}


async def test_replay(served: tuple[World, str, HttpServingNode]) -> None:
    """Held-out answers that the candidate makes likelier were scored high, the others low: it must
    win every pair. Turned round: none.
    """
    world, content_id, node = served
    world.text = REPLAY
    held = [i for i in range(200) if is_held_out(f"smp-{i}")][:12]
    tokens = {i: (3, 10 + i, 20 + i, 30 + i % 7, 40 + i % 5) for i in held}
    await node.load_adapter("probe", str(world.state / "adapter"))
    ours = {i: sum((await node.prompt_logprobs("probe", list(tokens[i])))[1:]) for i in held}
    heads = {i: sum((await node.prompt_logprobs("base", list(tokens[i])))[1:]) for i in held}
    await node.unload_adapter("probe")
    assert len(await node.prompt_logprobs("base", list(tokens[held[0]]))) == 4
    likelier = {i for i in held if ours[i] > heads[i]}
    assert 0 < len(likelier) < len(held), "the adapter moves some up and some down"
    process = await world.process()
    for turned in (False, True):
        for i in held:
            await process.on_sample(scored(i, float((i in likelier) is not turned), tokens[i]))
        await world.on_candidate(candidate(content_id=content_id), process)
    right, wrong = world.verdicts()
    assert (right.verdict, right.wins, right.losses) == ("select", len(held), 0)
    assert (wrong.verdict, wrong.wins, wrong.losses) == ("reject", 0, len(held))
    assert set(await node.models()) == {"base"}
