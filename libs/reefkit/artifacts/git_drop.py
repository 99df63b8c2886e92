"""Taking contents out of the artifact repository.

    rewrite   the branch without their commits: those after them get new parents and the same trees; the tags follow; then their tags go
    sweep     objects that no ref reaches any more, and LFS objects that no tree points to

The two belong to different calls: what one call makes unreachable is removed by the next, so that a reader that has just looked up a tag
can finish. Killed in between, either is simply done again: the same commits get the same ids.
"""

import time
from collections.abc import Collection, Iterator
from pathlib import Path

from dulwich.lfs import LFSPointer
from dulwich.object_store import iter_tree_contents
from dulwich.objects import Blob, Commit, ObjectID, Tree
from dulwich.refs import Ref
from dulwich.repo import Repo

from reefcommon.errors import Unavailable
from reefkit.artifacts.git_refs import branch_of, loose_root, move, read_ref, tag_of, write_loose

YOUNG_S = 3600.0
"""Objects younger than this stay: another program may be about to name them."""


def rewrite(repo: Repo, scenario: str, contents: Collection[str]) -> None:
    """Make the branch and the tags of a scenario as if these contents had never been put. Other contents keep their trees."""
    gone = {
        tag: commit
        for content in contents
        if (commit := read_ref(repo, tag := tag_of(scenario, content))) is not None
    }
    branch = branch_of(scenario)
    old_head = read_ref(repo, branch)
    if not gone or old_head is None:
        return
    new_ids, new_head = _without(repo, old_head, set(gone.values()))
    prefix = tag_of(scenario, "")
    for tag in [ref for ref in repo.refs.allkeys() if ref.startswith(prefix)]:
        commit = read_ref(repo, tag)
        if commit is not None and (new := new_ids.get(commit, commit)) != commit:
            move(repo, tag, commit, new)
    if new_head is None:
        _remove(repo, branch, old_head)
    elif new_head != old_head:
        move(repo, branch, old_head, new_head)
    for tag, commit in gone.items():
        _remove(repo, tag, commit)


def _without(
    repo: Repo, head: ObjectID, gone: Collection[ObjectID]
) -> tuple[dict[ObjectID, ObjectID], ObjectID | None]:
    """Commits from the first one to `head` without those in `gone`: (old id -> new id of those that changed, the new head)."""
    new_ids: dict[ObjectID, ObjectID] = {}
    parent: ObjectID | None = None
    for commit in reversed(list(_line(repo, head))):
        if commit.id in gone:
            continue
        if commit.parents != ([parent] if parent else []):
            old = commit.id
            commit.parents = [parent] if parent else []
            write_loose(repo, commit)
            new_ids[old] = commit.id
        parent = commit.id
    return new_ids, parent


def _line(repo: Repo, head: ObjectID) -> Iterator[Commit]:
    """A branch from its head to its beginning: each commit has one parent."""
    at: ObjectID | None = head
    while at is not None:
        commit = repo[at]
        assert isinstance(commit, Commit)
        at = commit.parents[0] if commit.parents else None
        yield commit


def _remove(repo: Repo, ref: Ref, commit: ObjectID) -> None:
    if not repo.refs.remove_if_equals(ref, commit):
        raise Unavailable(f"{ref.decode()} was moved by another program meanwhile")


def sweep(repo: Repo, lfs: Path) -> int:
    """Remove what no ref reaches. Returns how many files are gone."""
    reached, pointed = _reached(repo)
    loose = [
        path for folder in loose_root(repo).glob("[0-9a-f][0-9a-f]") for path in folder.iterdir()
    ]
    unreached = [path for path in loose if (path.parent.name + path.name).encode() not in reached]
    unreached += [path for path in lfs.glob("??/??/*") if path.name not in pointed]
    old = [path for path in unreached if path.stat().st_mtime < time.time() - YOUNG_S]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def _reached(repo: Repo) -> tuple[set[bytes], set[str]]:
    """(ids of all objects that a ref reaches, LFS object ids that their trees point to)."""
    reached: set[bytes] = set()
    pointed: set[str] = set()
    for ref in repo.refs.allkeys():
        at = read_ref(repo, ref)
        for commit in _line(repo, at) if at is not None else ():
            if commit.id in reached:
                break
            reached |= {commit.id, commit.tree, *_folders(repo, commit.tree)}
            for entry in iter_tree_contents(repo.object_store, commit.tree):
                assert entry.sha is not None
                if entry.sha not in reached:
                    reached.add(entry.sha)
                    blob = repo.object_store[entry.sha]
                    assert isinstance(blob, Blob)
                    data = blob.as_raw_string()
                    pointer = LFSPointer.from_bytes(data) if len(data) < 1024 else None
                    pointed |= {pointer.oid} if pointer is not None else set()
    return reached, pointed


def _folders(repo: Repo, tree: ObjectID) -> Iterator[ObjectID]:
    entries = repo.object_store[tree]
    assert isinstance(entries, Tree)
    for entry in entries.iteritems():
        assert entry.sha is not None
        assert entry.mode is not None
        if entry.mode & 0o040000:
            yield entry.sha
            yield from _folders(repo, entry.sha)
