"""The git repository is one that stock git and git-lfs can use, and a crash at any point leaves nothing wrong in it."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dulwich.repo import Repo

from reefcommon.artifacts import hash_tree
from reefcommon.errors import BadConfig, Poison, Unavailable
from reefcommon.settings import SystemSettings
from reefkit.artifacts import git as artifacts_git
from reefkit.artifacts.git import GitArtifactStore
from reefkit.artifacts.git_refs import tag_of
from reefkit.artifacts.selection import open_artifact_store
from tests.contracts.test_artifact_store import make_tree


class Killed(BaseException):
    """Stands for the end of the process: no handler of ours may catch it."""


@pytest.mark.lfs
@pytest.mark.skipif(
    shutil.which("git-lfs") is None, reason="git-lfs is not installed: apt-get install git-lfs"
)
def test_git_and_git_lfs_check_out_the_same_bytes(tmp_path: Path) -> None:
    store = GitArtifactStore(tmp_path / "artifacts.git")
    trees = [make_tree(tmp_path, seed) for seed in (b"a", b"b")]
    for tree, manifest in trees:
        store.put(tree, manifest, "default")
    home = tmp_path / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_TERMINAL_PROMPT": "0"}

    def git(*words: str, cwd: Path = tmp_path) -> str:
        done = subprocess.run(
            ["git", *words],
            check=False,
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("lfs", "install")
    git("clone", (tmp_path / "artifacts.git").as_uri(), "clone")
    clone = tmp_path / "clone"
    for tree, manifest in reversed(trees):
        git("checkout", "-q", f"tags/default/{manifest.content_id}", cwd=clone)
        for name in manifest.files:
            assert (clone / name).read_bytes() == (tree / name).read_bytes(), name
    assert "Recipe: r:R" in git("log", "-1", "--format=%B", cwd=clone)
    assert "adapter_model.safetensors" in git("lfs", "ls-files", cwd=clone)
    git("fsck", "--full", "--strict", cwd=tmp_path / "artifacts.git")


@pytest.mark.parametrize(
    ("step", "calls_before"),
    [("_write_lfs", 0), ("_write_lfs", 1), ("write_loose", 0), ("write_loose", 1), ("move", 0)],
)
def test_killed_while_putting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, calls_before: int
) -> None:
    store = GitArtifactStore(tmp_path / "artifacts.git")
    first, second = make_tree(tmp_path, b"a"), make_tree(tmp_path, b"b")
    store.put(*first, "default")
    owner = GitArtifactStore if step == "_write_lfs" else artifacts_git
    original, left = getattr(owner, step), iter(range(calls_before, -1, -1))

    def dying(*args: object) -> object:
        if next(left, 0) == 0:
            raise Killed
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dying)
        with pytest.raises(Killed):
            store.put(*second, "default")
    store.get(first[1].content_id, "default", tmp_path / "first")
    with pytest.raises(Poison):
        store.get(second[1].content_id, "default", tmp_path / "second")
    store.put(*second, "default")
    store.get(second[1].content_id, "default", tmp_path / "second")
    assert hash_tree(tmp_path / "second") == second[1].files


def test_a_ref_lock_that_a_dead_program_left(tmp_path: Path) -> None:
    store = GitArtifactStore(tmp_path / "artifacts.git")
    store.put(*make_tree(tmp_path, b"a"), "default")
    tree, manifest = make_tree(tmp_path, b"b")
    lock = tmp_path / "artifacts.git" / "refs" / "tags" / "default" / f"{manifest.content_id}.lock"
    lock.touch()
    with pytest.raises(Unavailable, match="is locked"):
        store.put(tree, manifest, "default")
    assert lock.exists(), "it may be held by a program that runs"
    os.utime(lock, (time.time() - 60, time.time() - 60))
    with pytest.raises(Unavailable, match="is locked"):
        store.put(tree, manifest, "default")
    assert store.put(tree, manifest, "default") == manifest.content_id


def test_a_damaged_or_missing_large_file_is_not_served(tmp_path: Path) -> None:
    store = GitArtifactStore(tmp_path / "artifacts.git")
    tree, manifest = make_tree(tmp_path)
    store.put(tree, manifest, "default")
    sha256 = manifest.files["adapter_model.safetensors"]
    large = tmp_path / "artifacts.git" / "lfs" / "objects" / sha256[:2] / sha256[2:4] / sha256
    large.write_bytes(b"b" + large.read_bytes()[1:])
    with pytest.raises(Poison, match=r"does not match its manifest at: adapter_model"):
        store.get(manifest.content_id, "default", tmp_path / "out")
    large.unlink()
    with pytest.raises(Poison, match="missing"):
        store.get(manifest.content_id, "default", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda b: b[: len(b) // 2], lambda b: b[:-4] + b"\0\0\0\0"]
)
def test_damaged_git_objects_are_named_as_such(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """An error of another kind would end the publisher's rounds, and the next ones, wherever a node is given that content again."""
    store = GitArtifactStore(tmp_path / "artifacts.git")
    tree, manifest = make_tree(tmp_path)
    store.put(tree, manifest, "default")
    objects = [
        path for path in (tmp_path / "artifacts.git" / "objects").rglob("*") if path.is_file()
    ]
    assert len(objects) >= 4
    for path in objects:
        whole = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(damage(whole))
        with pytest.raises(Poison, match="is damaged"):
            store.get(manifest.content_id, "default", tmp_path / "out")
        path.write_bytes(whole)
    assert not (tmp_path / "out").exists()
    store.get(manifest.content_id, "default", tmp_path / "out")


@pytest.mark.parametrize("name", [".gitattributes", "a/.git/config", ".GIT/hooks/post-checkout"])
def test_a_file_that_git_would_obey_is_refused(tmp_path: Path, name: str) -> None:
    from reefcommon.artifacts import describe

    tree = tmp_path / "tree"
    (tree / name).parent.mkdir(parents=True)
    (tree / name).write_text("x")
    with pytest.raises(Poison, match="a meaning of its own"):
        GitArtifactStore(tmp_path / "artifacts.git").put(tree, describe(tree, "harness"), "default")


def test_each_content_is_one_parentless_commit(tmp_path: Path) -> None:
    store = GitArtifactStore(tmp_path / "artifacts.git")
    contents = [store.put(*make_tree(tmp_path, seed), "default") for seed in (b"a", b"b", b"a")]
    with Repo(str(tmp_path / "artifacts.git")) as repo:
        commits = {ref: repo[repo.refs[ref]] for ref in repo.refs.allkeys() if ref != b"HEAD"}
    assert set(commits) == {tag_of("default", content) for content in contents}
    assert not any(commit.parents for commit in commits.values())
    titles = {commit.message.decode().splitlines()[0] for commit in commits.values()}
    assert titles == {f"lora of default: {content}" for content in contents}


def test_the_store_that_the_settings_name(tmp_path: Path) -> None:
    assert isinstance(open_artifact_store(SystemSettings(state_dir=tmp_path)), GitArtifactStore)
    with pytest.raises(BadConfig, match="REEF_ARTIFACTS_URL"):
        open_artifact_store(SystemSettings(state_dir=tmp_path, artifacts_url="s3://bucket"))
