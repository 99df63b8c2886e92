"""A candidate whose base is not the head: it is evaluated again if its own kind has not moved."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from reefcommon.artifacts import describe
from reefcommon.events import CandidateProposed, Kind
from reefcommon.harness.files import write_tree
from reefcommon.harness.tree import Entry
from reefkit.artifacts.git import GitArtifactStore
from tests.evaluator.conftest import TASKS, World, candidate

pytestmark = pytest.mark.redis

GROUP: dict[Kind, str] = {"lora": "weights", "harness": "harness", "solution": "solution"}


def put(world: World, kind: Kind, name: str) -> str:
    """Store a content of a kind; a harness with a rule that is its name."""
    tree = world.state / f"{kind}-{name}"
    tree.mkdir()
    if kind == "harness":
        write_tree((Entry("rule", "rules", {"text": name}),), tree)
    else:
        (tree / "file").write_text(name)
    manifest = describe(tree, kind)
    world.store.put(tree, manifest, "default")
    return manifest.content_id


@pytest.fixture
def stored(world: World, tmp_path: Path) -> World:
    world.store = GitArtifactStore(tmp_path / "artifacts.git")  # type: ignore[assignment]
    return world


async def moved(world: World, kinds: Iterable[Kind], own: Kind) -> CandidateProposed:
    """A candidate of the first head, after releases of these kinds."""
    event = candidate(kind=own, content_id=put(world, own, "Long."))
    contents: dict[str, str] = {}
    for number, kind in enumerate(kinds, 1):
        contents[kind] = put(world, kind, f"head {number}")
        adapter = None
        if kind == "lora":
            adapter = "default@head"
            world.nodes[0].adapters[adapter] = "/there"
        await world.advance(f"r{number}-0", adapter=adapter, moves=GROUP[kind], **contents)
    return event


@pytest.mark.parametrize("on_stale", ["refuse", "merge", "reevaluate"])
@pytest.mark.parametrize("other", GROUP)
@pytest.mark.parametrize("own", ["lora", "harness"])
async def test_kinds_that_are_disjoint_merge(
    stored: World, own: Kind, other: Kind, on_stale: str
) -> None:
    stored.text = TASKS.replace("SAORecipe'", f"SAORecipe', on_stale: {on_stale}") + "}"
    stored.nodes[0].answer = lambda model, messages, *_: (
        "long answer" if "cand" in model or "Long." in str(messages) else "x"
    )
    found = await stored.verdict(await moved(stored, [other], own))
    again = on_stale == "reevaluate" or (on_stale == "merge" and own != other)
    assert found.verdict == ("select" if again else "reject"), found.reason
    assert found.head_release_id == "r1-0"
    assert bool(stored.nodes[0].asked) is again


async def test_a_merged_candidate_is_tried_together_with_what_the_head_has(stored: World) -> None:
    """A LoRA of the first head, when a harness and a solution have been released since."""
    stored.text = TASKS + "}"
    event = await moved(stored, ["harness", "solution"], "lora")
    found = await stored.verdict(event)
    assert (found.verdict, found.head_release_id) == ("select", "r2-0")
    asked = stored.nodes[0].asked
    assert {"cand" in model for model, _, _ in asked} == {True, False}
    assert all("head 1" in str(messages[0]) for _, messages, _ in asked), "both under its harness"


async def test_a_merged_harness_is_tried_on_the_heads_weights(stored: World) -> None:
    stored.text = TASKS + "}"
    event = await moved(stored, ["lora"], "harness")
    await stored.verdict(event)
    asked = stored.nodes[0].asked
    assert {model for model, _, _ in asked} == {"default@head"}
    assert sum("Long." in str(messages) for _, messages, _ in asked) == len(asked) / 2
