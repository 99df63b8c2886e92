"""Refs, objects and garbage of the artifact repository. A kill leaves nothing half written."""

import os
import time
from pathlib import Path

from dulwich.file import FileLocked
from dulwich.gc import find_reachable_objects
from dulwich.lfs import LFSPointer
from dulwich.object_store import DiskObjectStore
from dulwich.objects import Blob, Commit, ObjectID, ShaFile
from dulwich.refs import Ref, check_ref_format
from dulwich.repo import Repo

from reefcommon.errors import Unavailable
from reefcommon.files import write_synced

_FOREIGN_LOCK_S = 10.0
YOUNG_S = 3600.0
"""Younger objects are never swept: another process may be about to name them."""


def write_loose(repo: Repo, obj: ShaFile) -> None:
    """Write one object as git does: a temporary file, synced, renamed."""
    # dulwich's own way leaves a lock behind if the process is killed.
    name = obj.id.decode()
    target = _loose_root(repo) / name[:2] / name[2:]
    if target.exists():
        return
    partial = target.parent.parent / f"tmp_obj_{os.getpid()}_{name}"
    write_synced(partial, iter([obj.as_legacy_object()]))
    target.parent.mkdir(exist_ok=True)
    partial.replace(target)


def move(repo: Repo, ref: Ref, old: ObjectID | None, new: ObjectID) -> None:
    """Move a ref by compare-and-swap. Raises Unavailable if a git program holds or moved it."""
    lock = Path(os.fsdecode(repo.path)) / (ref.decode() + ".lock")
    try:
        moved = repo.refs.set_if_equals(ref, old, new) if old else repo.refs.add_if_new(ref, new)
    except FileLocked:
        # A living owner holds it for milliseconds; the owner of an old lock was killed.
        if time.time() - lock.stat().st_mtime > _FOREIGN_LOCK_S:
            lock.unlink(missing_ok=True)
        raise Unavailable(f"{ref.decode()} is locked by {lock}") from None
    if not moved:
        raise Unavailable(f"{ref.decode()} was moved by another program meanwhile")


def remove(repo: Repo, ref: Ref) -> None:
    commit = read_ref(repo, ref)
    if commit is not None and not repo.refs.remove_if_equals(ref, commit):
        raise Unavailable(f"{ref.decode()} was moved by another program meanwhile")


def read_ref(repo: Repo, ref: Ref) -> ObjectID | None:
    """Return the object of a ref; None if there is no such ref."""
    try:
        return repo.refs[ref]
    except KeyError:
        return None


def tag_of(scenario: str, content_id: str) -> Ref:
    return Ref(f"refs/tags/{_name(scenario)}/{content_id}".encode())


def detach(repo: Repo, scenario: str) -> None:
    """Turn the branch of an earlier version into parentless commits. May be repeated."""
    branch = Ref(f"refs/heads/{_name(scenario)}".encode())
    if read_ref(repo, branch) is None:
        return
    for tag in [ref for ref in repo.refs.allkeys() if ref.startswith(tag_of(scenario, ""))]:
        old = repo.refs[tag]
        commit = repo[old]
        assert isinstance(commit, Commit)
        if commit.parents:
            commit.parents = []
            write_loose(repo, commit)
            move(repo, tag, old, commit.id)
    remove(repo, branch)


def sweep(repo: Repo, lfs: Path) -> int:
    """Remove unreachable objects and large files. Returns the number of removed files."""
    reached, pointed = _reached(repo)
    root = _loose_root(repo)
    loose = [path for folder in root.glob("[0-9a-f][0-9a-f]") for path in folder.iterdir()]
    unreached = [path for path in loose if (path.parent.name + path.name).encode() not in reached]
    unreached += [path for path in lfs.glob("??/??/*") if path.name not in pointed]
    old = [path for path in unreached if path.stat().st_mtime < time.time() - YOUNG_S]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def pointer_of(blob: Blob) -> LFSPointer | None:
    """Return the LFS pointer that a blob holds, if any."""
    data = blob.as_raw_string()
    return LFSPointer.from_bytes(data) if len(data) < 1024 else None


def _reached(repo: Repo) -> tuple[set[ObjectID], set[str]]:
    reached = find_reachable_objects(repo.object_store, repo.refs)
    # An object that is missing raises KeyError: then it is unknown what it reaches.
    found = (repo.object_store[name] for name in reached)
    pointers = [pointer_of(blob) for blob in found if isinstance(blob, Blob)]
    return reached, {pointer.oid for pointer in pointers if pointer is not None}


def _loose_root(repo: Repo) -> Path:
    store = repo.object_store
    assert isinstance(store, DiskObjectStore)
    return Path(os.fsdecode(store.path))


def _name(scenario: str) -> str:
    # `%` is not allowed in a scenario's name, so no two scenarios share one component.
    plain = check_ref_format(Ref(f"refs/heads/{scenario}".encode()))
    return scenario if plain else scenario.replace(".", "%2e")
