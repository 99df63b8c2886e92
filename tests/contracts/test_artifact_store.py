"""The contract of ArtifactStore: in memory, over git with LFS, and over lakeFS."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reefcommon.artifacts import (
    MANIFEST_NAME,
    ArtifactStore,
    Manifest,
    describe,
    hash_tree,
    materialize,
    read_manifest,
)
from reefcommon.errors import Poison
from reefcommon.events import Lineage
from reefkit.artifacts.git import GitArtifactStore
from reefkit.artifacts.lakefs import LakeFSArtifactStore
from tests.contracts.fake_lakefs import fake_lakefs
from tests.fakes.artifacts import MemoryArtifactStore


@pytest.fixture(params=["memory", "git", "lakefs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArtifactStore]:
    if request.param != "lakefs":
        path = tmp_path / "state" / "artifacts.git"
        yield MemoryArtifactStore() if request.param == "memory" else GitArtifactStore(path)
        return
    with fake_lakefs() as server:
        yield LakeFSArtifactStore(server.url)


def make_tree(root: Path, seed: bytes = b"a") -> tuple[Path, Manifest]:
    tree = root / f"tree-{seed.hex()}"
    files = {
        "adapter_model.safetensors": seed * 300_000,
        "adapter_config.json": b'{"r": 8}',
        "nested/deep/two words [x].bin": seed * 70_000,
        "nested/empty": b"",
        "pointer.txt": b"version https://git-lfs.github.com/spec/v1\noid sha256:"
        + b"0" * 64
        + b"\nsize 3\n",
    }
    for name, data in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    lineage = Lineage(job_id="job-1", recipe="r:R", sample_ids=("s1", "s2"), step=3)
    return tree, describe(tree, "lora", base="tiny", metrics={"loss": 0.5}, lineage=lineage)


def test_what_was_put_comes_back(store: ArtifactStore, tmp_path: Path) -> None:
    tree, manifest = make_tree(tmp_path)
    assert store.put(tree, manifest, "default") == manifest.content_id
    assert store.get(manifest.content_id, "default", tmp_path / "out" / "x") == manifest
    assert hash_tree(tmp_path / "out" / "x") == manifest.files
    assert read_manifest(tmp_path / "out" / "x") == manifest
    assert not list((tmp_path / "out").glob(".partial-*"))


def test_put_and_get_are_repeatable(store: ArtifactStore, tmp_path: Path) -> None:
    tree, manifest = make_tree(tmp_path)
    for _ in range(3):
        store.put(tree, manifest, "default")
        store.get(manifest.content_id, "default", tmp_path / "out")
    assert hash_tree(tmp_path / "out") == manifest.files


def test_contents_of_a_scenario_and_of_another(store: ArtifactStore, tmp_path: Path) -> None:
    trees = [make_tree(tmp_path, seed) for seed in (b"a", b"b", b"c")]
    for (tree, manifest), scenario in zip(trees, ("math.v2", "math.v2", "math-v2"), strict=True):
        store.put(tree, manifest, scenario)
    for (_, manifest), scenario in zip(trees, ("math.v2", "math.v2", "math-v2"), strict=True):
        assert (
            materialize(store, manifest.content_id, scenario, tmp_path / "out").name
            == manifest.content_id
        )
    with pytest.raises(Poison, match="no content"):
        store.get(trees[2][1].content_id, "math.v2", tmp_path / "other")


@pytest.mark.parametrize("scenario", ["a..b", "a.lock", "a.", "default"])
def test_every_scenario_name_has_a_place(
    store: ArtifactStore, tmp_path: Path, scenario: str
) -> None:
    tree, manifest = make_tree(tmp_path)
    store.put(tree, manifest, scenario)
    assert store.get(manifest.content_id, scenario, tmp_path / "out") == manifest


@pytest.mark.parametrize("content", ["lora-" + "0" * 32, "../../etc", "lora-../x", "", "base"])
def test_no_such_content(store: ArtifactStore, tmp_path: Path, content: str) -> None:
    with pytest.raises(Poison, match=r"no content|not a content id"):
        store.get(content, "default", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tree_that_is_not_its_manifest_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    tree, manifest = make_tree(tmp_path)
    with pytest.raises(Poison, match="the files are"):
        store.put(tree, manifest.model_copy(update={"content_id": "lora-" + "1" * 32}), "default")
    (tree / "adapter_config.json").write_bytes(b"{}")
    with pytest.raises(Poison, match="adapter_config"):
        store.put(tree, manifest, "default")


def test_many_at_once(store: ArtifactStore, tmp_path: Path) -> None:
    trees = [make_tree(tmp_path, bytes([65 + i])) for i in range(4)] * 3
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda pair: store.put(*pair, "default"), trees))
        found = list(
            pool.map(
                lambda i: store.get(
                    trees[i][1].content_id, "default", tmp_path / "out" / str(i % 4)
                ),
                range(12),
            )
        )
    assert found == [manifest for _, manifest in trees]


def test_a_damaged_copy_is_fetched_again(tmp_path: Path) -> None:
    """Else a release that the store holds whole could never be served, nor gone back to, until somebody removes the copy."""
    store = GitArtifactStore(tmp_path / "artifacts.git")
    tree, manifest = make_tree(tmp_path)
    store.put(tree, manifest, "default")
    copy = materialize(store, manifest.content_id, "default", tmp_path / "copies")
    for name in (MANIFEST_NAME, "adapter_model.safetensors"):
        for damage in (b"", b"other", None):
            (copy / name).unlink()
            if damage is not None:
                (copy / name).write_bytes(damage)
            assert (
                hash_tree(materialize(store, manifest.content_id, "default", tmp_path / "copies"))
                == manifest.files
            )
            assert read_manifest(copy) == manifest
    assert [path.name for path in (tmp_path / "copies").iterdir()] == [manifest.content_id]
