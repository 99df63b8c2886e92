"""Fetched trees: what a job starts from stays, at whatever moment a round looks."""

import os
import threading
import time
from pathlib import Path

import pytest

from reefcommon.artifacts import describe
from reefkit.artifacts.cache import LEFTOVER_KEPT_S, FetchedTrees
from reefkit.artifacts.git import GitArtifactStore


@pytest.fixture
def store(tmp_path: Path) -> GitArtifactStore:
    return GitArtifactStore(tmp_path / "artifacts.git")


def put(store: GitArtifactStore, tmp_path: Path, words: str) -> str:
    tree = tmp_path / words
    tree.mkdir()
    (tree / "words.txt").write_text(words)
    return store.put(tree, describe(tree, "harness"), "default")


def test_only_what_is_in_use_stays(store: GitArtifactStore, tmp_path: Path) -> None:
    trees = FetchedTrees(tmp_path / "trees")
    assert trees.prune(list) == 0, "nothing was ever fetched"
    one, two = (
        trees.fetch(store, put(store, tmp_path, words), "default") for words in ("one", "two")
    )
    assert trees.prune(lambda: {one.name}) == 1
    assert (one / "words.txt").read_text() == "one"
    assert [path.name for path in trees.root.iterdir()] == [one.name]
    assert trees.fetch(store, two.name, "default") == two, "it can be had again"


@pytest.mark.parametrize("fetched_before", [True, False])
def test_a_job_that_starts_while_a_round_looks_has_its_tree(
    store: GitArtifactStore, tmp_path: Path, fetched_before: bool
) -> None:
    content, trees, jobs = put(store, tmp_path, "one"), FetchedTrees(tmp_path / "trees"), set[str]()
    trees.fetch(store, content if fetched_before else put(store, tmp_path, "two"), "default")

    def start() -> None:
        jobs.add(content)
        trees.fetch(store, content, "default")

    job = threading.Thread(target=start)

    def in_use() -> set[str]:
        seen = set(jobs)
        job.start()
        job.join(0.5)  # as far as it comes before the round goes on
        return seen

    trees.prune(in_use)
    job.join()
    assert (trees.root / content / "words.txt").read_text() == "one"
    assert trees.prune(lambda: set(jobs)) == 0


def test_a_fetch_under_way_is_left_alone_and_what_killed_ones_left_goes(
    store: GitArtifactStore, tmp_path: Path
) -> None:
    trees = FetchedTrees(tmp_path / "trees")
    for name in (".partial-now", ".partial-old", ".away-killed"):
        (trees.root / name).mkdir(parents=True)
    os.utime(trees.root / ".partial-old", (time.time() - 2 * LEFTOVER_KEPT_S,) * 2)
    assert trees.prune(set) == 0
    assert [path.name for path in trees.root.iterdir()] == [".partial-now"]
