"""Contents that nothing names can be taken out; everything else stays, under every store and after every kill."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from dulwich.objects import Commit
from dulwich.refs import Ref
from dulwich.repo import Repo

from reefcommon.artifacts import ArtifactStore, hash_tree
from reefcommon.errors import Poison, Unavailable
from reefkit.artifacts import git as git_store
from reefkit.artifacts import git_refs
from reefkit.artifacts.git import GitArtifactStore
from reefkit.artifacts.lakefs import LakeFSArtifactStore
from tests.contracts.fake_lakefs import fake_lakefs
from tests.contracts.test_artifact_store import make_tree
from tests.fakes.artifacts import MemoryArtifactStore

SEEDS = (b"a", b"b", b"c", b"d")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArtifactStore]:
    if request.param != "lakefs":
        path = tmp_path / "artifacts.git"
        yield MemoryArtifactStore() if request.param == "memory" else GitArtifactStore(path)
        return
    with fake_lakefs() as server:
        yield LakeFSArtifactStore(server.url)


def filled(store: ArtifactStore, root: Path) -> list[str]:
    return [store.put(*make_tree(root, seed), "default") for seed in SEEDS]


def there(store: ArtifactStore, content: str, scenario: str, out: Path) -> bool:
    try:
        manifest = store.get(content, scenario, out / scenario / content)
    except Poison:
        return False
    return hash_tree(out / scenario / content) == manifest.files


@pytest.mark.parametrize(
    ("store", "gone"),
    [
        ("git", [0]),
        ("git", [1, 2]),
        ("git", [3]),
        ("git", [0, 1, 2, 3]),
        ("lakefs", [1, 2]),
        ("memory", [1, 2]),
    ],
    indirect=["store"],
)
def test_what_is_dropped_is_gone_and_all_else_is_as_it_was(store, tmp_path, gone):
    contents = filled(store, tmp_path)
    store.put(
        *make_tree(tmp_path, SEEDS[gone[0]]), "other"
    )  # the same bytes under another name are not touched
    for _ in range(2):
        store.drop([contents[number] for number in gone], "default")
    for number, content in enumerate(contents):
        assert there(store, content, "default", tmp_path / "out") == (number not in gone)
    assert there(store, contents[gone[0]], "other", tmp_path / "out")
    again = make_tree(tmp_path, SEEDS[gone[0]])
    assert store.put(*again, "default") == contents[gone[0]]
    assert there(store, contents[gone[0]], "default", tmp_path / "again")


@pytest.mark.parametrize("store", ["git", "memory"], indirect=True)
def test_what_was_never_there_is_passed_over(store, tmp_path):
    store.drop(["lora-" + "0" * 32], "default")
    contents = filled(store, tmp_path)
    store.drop(["lora-" + "0" * 32], "default")
    assert all(there(store, content, "default", tmp_path / "out") for content in contents)


def aged(repository: Path, by_s: float) -> None:
    for folder in ("objects", "lfs/objects"):
        for path in (repository / folder).rglob("*"):
            if path.is_file():
                os.utime(path, (time.time() - by_s,) * 2)


def test_the_disk_is_given_back_one_call_later_and_git_finds_nothing_wrong(tmp_path):
    repository = tmp_path / "artifacts.git"
    store = GitArtifactStore(repository)
    contents = filled(store, tmp_path)
    before = len(list((repository / "lfs" / "objects").rglob("?" * 64)))
    store.drop([contents[1]], "default")
    assert len(list((repository / "lfs" / "objects").rglob("?" * 64))) == before, (
        "a reader may have begun"
    )
    store.drop([], "default")
    assert len(list((repository / "lfs" / "objects").rglob("?" * 64))) == before, (
        "an hour old at least"
    )
    aged(repository, git_refs.YOUNG_S + 10)
    store.drop([], "default")
    after = len(list((repository / "lfs" / "objects").rglob("?" * 64)))
    assert after == before - 2, (
        "the two large files that no other content has; the empty and the shared ones stay"
    )
    assert [there(store, content, "default", tmp_path / "out") for content in contents] == [
        True,
        False,
        True,
        True,
    ]
    found = subprocess.run(
        ["git", "fsck", "--full", "--strict", "--no-dangling"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    assert "unreachable" not in found.stdout


@pytest.mark.parametrize("content", [None, b"", b"x"])
def test_nothing_is_dropped_while_an_object_is_damaged(tmp_path, content):
    """It is unknown what such an object reaches. The others are read as before."""
    repository = tmp_path / "artifacts.git"
    store = GitArtifactStore(repository)
    contents = filled(store, tmp_path)
    with Repo(str(repository)) as repo:
        tag = git_refs.tag_of("default", contents[0])
        name = repo[repo.refs[tag]].tree.decode()
    broken = repository / "objects" / name[:2] / name[2:]
    broken.chmod(0o644)
    broken.unlink() if content is None else broken.write_bytes(content)
    aged(repository, git_refs.YOUNG_S + 10)
    before = {path for path in repository.rglob("*") if path.is_file()}
    with pytest.raises(Unavailable, match=r"damaged.*git fsck"):
        store.drop([contents[1]], "default")
    assert {path for path in repository.rglob("*") if path.is_file()} == before
    assert all(there(store, one, "default", tmp_path / "out") for one in contents[1:])


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("kill_at", range(1, 5))
def test_killed_while_dropping(tmp_path, monkeypatch, kill_at):
    store = GitArtifactStore(tmp_path / "artifacts.git")
    contents = filled(store, tmp_path)
    count = 0

    def mortal(original):
        def act(*words):
            nonlocal count
            count += 1
            if count == kill_at:
                raise Killed
            return original(*words)

        return act

    with monkeypatch.context() as patch:
        for name in ("sweep", "remove"):
            patch.setattr(git_store, name, mortal(getattr(git_store, name)))
        try:
            store.drop([contents[0], contents[2]], "default")
        except Killed:
            pass
        else:
            assert count < kill_at, "it was killed at every effect"
    assert all(there(store, contents[number], "default", tmp_path / "out") for number in (1, 3)), (
        "whatever happens"
    )
    store.drop([contents[0], contents[2]], "default")
    assert [there(store, content, "default", tmp_path / "after") for content in contents] == [
        False,
        True,
        False,
        True,
    ]
    aged(tmp_path / "artifacts.git", git_refs.YOUNG_S + 10)
    store.drop([], "default")
    assert [there(store, content, "default", tmp_path / "swept") for content in contents] == [
        False,
        True,
        False,
        True,
    ]


def as_branch(repository: Path, scenario: str, contents: list[str]) -> None:
    """Rewrite a repository as earlier versions wrote it: a branch of all commits, and tags on it."""
    with Repo(str(repository)) as repo:
        parent = None
        for content in contents:
            ref = git_refs.tag_of(scenario, content)
            commit = repo[repo.refs[ref]]
            assert isinstance(commit, Commit)
            commit.parents = [parent] if parent else []
            git_refs.write_loose(repo, commit)
            repo.refs[ref] = parent = commit.id
        repo.refs[Ref(f"refs/heads/{scenario}".encode())] = parent


@pytest.mark.parametrize("kill_at", range(1, 9))
def test_a_branch_of_an_earlier_version_is_taken_over(tmp_path, monkeypatch, kill_at):
    repository = tmp_path / "artifacts.git"
    store = GitArtifactStore(repository)
    contents = filled(store, tmp_path)
    as_branch(repository, "default", contents)
    assert all(there(store, content, "default", tmp_path / "old") for content in contents)
    left = iter(range(kill_at - 1, 0, -1))

    def mortal(original):
        def act(*words):
            if next(left, 0) == 0:
                raise Killed
            return original(*words)

        return act

    with monkeypatch.context() as patch, suppress(Killed):
        for name in ("write_loose", "move", "remove"):
            patch.setattr(git_refs, name, mortal(getattr(git_refs, name)))
        store.drop([contents[1]], "default")
    store.drop([contents[1]], "default")
    aged(repository, git_refs.YOUNG_S + 10)
    store.drop([], "default")
    kept = [there(store, content, "default", tmp_path / "new") for content in contents]
    assert kept == [True, False, True, True]
    with Repo(str(repository)) as repo:
        assert Ref(b"refs/heads/default") not in repo.refs
        assert not any(repo[tip].parents for tip in repo.refs.as_dict().values())
