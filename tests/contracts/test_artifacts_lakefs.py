"""What is lakeFS's own: lineage in the commit, no branch left over, and what its failures mean."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from reefcommon.errors import Unavailable
from reefkit.artifacts.lakefs import LakeFSArtifactStore
from tests.contracts.fake_lakefs import FakeLakeFS, fake_lakefs
from tests.contracts.test_artifact_store import make_tree


@pytest.fixture
def server() -> Iterator[FakeLakeFS]:
    with fake_lakefs() as running:
        yield running


def test_one_branch_a_scenario_and_one_tag_a_content(server: FakeLakeFS, tmp_path: Path) -> None:
    tree, manifest = make_tree(tmp_path)
    LakeFSArtifactStore(server.url).put(tree, manifest, "math.v2")
    assert set(server.branches) == {"main", "mathDv2"}
    assert server.branches["mathDv2"].staged == {}
    assert set(server.tags) == {f"mathDv2-{manifest.content_id}"}
    assert {"recipe": "r:R", "job": "job-1", "step": "3", "samples": "2"}.items() <= max(
        server.metadata.values(), key=len
    ).items()


def test_killed_between_merge_and_tag(server: FakeLakeFS, tmp_path: Path) -> None:
    """The repeat finds the merged content, uploads nothing and sets the tag."""
    tree, manifest = make_tree(tmp_path)
    store = LakeFSArtifactStore(server.url)
    store.put(tree, manifest, "default")
    server.tags.clear()
    commits = len(server.commits)
    store.put(tree, manifest, "default")
    assert len(server.commits) == commits
    store.get(manifest.content_id, "default", tmp_path / "out")


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "refuses the credentials"), (500, "does not answer"), (404, "create it first")],
)
def test_failures_are_told_apart(
    server: FakeLakeFS, tmp_path: Path, status: int, words: str
) -> None:
    server.fail_with = status
    with pytest.raises(Unavailable, match=words):
        LakeFSArtifactStore(server.url).put(*make_tree(tmp_path), "default")


def test_a_disk_that_takes_no_copy(
    server: FakeLakeFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, manifest = make_tree(tmp_path)
    store = LakeFSArtifactStore(server.url)
    store.put(tree, manifest, "default")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("reefkit.artifacts.lakefs.write_synced", full)
    with pytest.raises(Unavailable, match="No space left"):
        store.get(manifest.content_id, "default", tmp_path / "out")


def test_a_server_that_is_away(unused_tcp_port: int, tmp_path: Path) -> None:
    store = LakeFSArtifactStore(f"lakefs://key:secret@127.0.0.1:{unused_tcp_port}/artifacts")
    with pytest.raises(Unavailable, match="does not answer"):
        store.get("lora-" + "0" * 32, "default", tmp_path / "out")
