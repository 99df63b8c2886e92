"""Refs and loose objects of the artifact repository: where a content lies, and how one object and one ref is written so that a kill
leaves nothing half done."""

import os
import time
from pathlib import Path

from dulwich.file import FileLocked
from dulwich.object_store import DiskObjectStore
from dulwich.objects import ObjectID, ShaFile
from dulwich.refs import Ref, check_ref_format
from dulwich.repo import Repo

from reefcommon.artifacts import write_synced
from reefcommon.errors import Unavailable

_FOREIGN_LOCK_S = 10.0


def write_loose(repo: Repo, obj: ShaFile) -> None:
    """Write one object as git does: a temporary file, synced, renamed. (dulwich's own way leaves a lock where it is killed.)"""
    name = obj.id.decode()
    target = loose_root(repo) / name[:2] / name[2:]
    if target.exists():
        return
    partial = target.parent.parent / f"tmp_obj_{os.getpid()}_{name}"
    write_synced(partial, iter([obj.as_legacy_object()]))
    target.parent.mkdir(exist_ok=True)
    partial.replace(target)


def loose_root(repo: Repo) -> Path:
    """The directory of loose objects."""
    store = repo.object_store
    assert isinstance(store, DiskObjectStore)
    return Path(os.fsdecode(store.path))


def move(repo: Repo, ref: Ref, old: ObjectID | None, new: ObjectID) -> None:
    """Compare-and-swap of one ref. Our own writers are kept out already; the comparison is for a git program of somebody's."""
    lock = Path(os.fsdecode(repo.path)) / (ref.decode() + ".lock")
    try:
        moved = repo.refs.set_if_equals(ref, old, new) if old else repo.refs.add_if_new(ref, new)
    except FileLocked:
        if time.time() - lock.stat().st_mtime > _FOREIGN_LOCK_S:
            lock.unlink(
                missing_ok=True
            )  # its owner was killed: it is held for milliseconds otherwise
        raise Unavailable(f"{ref.decode()} is locked by {lock}") from None
    if not moved:
        raise Unavailable(f"{ref.decode()} was moved by another program meanwhile")


def read_ref(repo: Repo, ref: Ref) -> ObjectID | None:
    """The object that a ref names; None where there is no such ref."""
    try:
        return repo.refs[ref]
    except KeyError:
        return None


def _name(scenario: str) -> str:
    """A scenario as one component of a ref; `%` is not in a scenario's name, so no two scenarios share one."""
    return (
        scenario
        if check_ref_format(Ref(f"refs/heads/{scenario}".encode()))
        else scenario.replace(".", "%2e")
    )


def branch_of(scenario: str) -> Ref:
    """The branch of a scenario."""
    return Ref(f"refs/heads/{_name(scenario)}".encode())


def tag_of(scenario: str, content_id: str) -> Ref:
    """The tag of one content of a scenario."""
    return Ref(f"refs/tags/{_name(scenario)}/{content_id}".encode())
