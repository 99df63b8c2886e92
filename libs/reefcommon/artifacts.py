"""Artifacts: a tree of files with a manifest, kept by digest. The bytes of every candidate and every release.

A tree is hashed file by file; its `content_id` is the digest of the sorted (path, sha256) pairs and the kind, so the same
bytes are the same content wherever and whenever they are stored.
"""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

import structlog
from pydantic import BaseModel, ConfigDict

from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.events import Kind, Lineage
from reefcommon.ids import digest

log = structlog.get_logger()

MANIFEST_NAME = "reef-manifest.json"
_CONTENT_ID = re.compile(r"[a-z]+-[0-9a-f]{8,64}")
_PARTIAL_KEPT_S = 3600
BASE_CONTENT_ID = "base"
"""The content of a scenario's first release: the base model as it is, no artifact."""


class Manifest(BaseModel):
    """What a tree holds and where it comes from. Written beside the files as `reef-manifest.json`, and not part of the digest."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    content_id: str
    kind: Kind
    base: str = ""
    files: dict[str, str]
    metrics: dict[str, float] = {}
    lineage: Lineage = Lineage()


class ArtifactStore(Protocol):
    """Where trees are kept. All calls are idempotent; all run in a worker thread, since they read and write files."""

    def put(self, tree: Path, manifest: Manifest, scenario: str) -> str:
        """Store the tree until it is dropped and return its content id. Raises Unavailable where the store does not take it."""

    def get(self, content_id: str, scenario: str, destination: Path) -> Manifest:
        """Write the tree to `destination` (made whole by a rename), verified file by file.

        Raises Poison where there is no such content or a file does not match its digest, Unavailable where the store does not answer.
        """

    def drop(self, contents: Collection[str], scenario: str) -> None:
        """Forget contents of a scenario; those that are not there are passed over. The caller knows that nothing names them."""


def safe_path(name: str) -> PurePosixPath:
    """A path inside a tree. Raises Poison for an absolute path, `..`, an empty or hidden-control name, or a newline."""
    path = PurePosixPath(name)
    if (
        not name
        or path.is_absolute()
        or ".." in path.parts
        or any(ord(c) < 32 or c == "\x7f" for c in name)
        or "\\" in name
    ):
        raise Poison(f"not a path inside an artifact: {name!r}")
    return path


def hash_tree(tree: Path) -> dict[str, str]:
    """SHA-256 of every regular file under `tree`, by relative POSIX path. Raises Poison for a link or a special file."""
    files: dict[str, str] = {}
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Poison(f"an artifact holds regular files only, not {name!r}")
        if path.is_file() and name != MANIFEST_NAME:
            files[str(safe_path(name))] = hash_file(path)
    if not files:
        raise Poison(f"an artifact without files: {tree}")
    return files


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_id(kind: Kind, files: dict[str, str]) -> str:
    """The identity of these bytes."""
    return f"{kind}-{digest(kind, sorted(files.items()))}"


def describe(
    tree: Path,
    kind: Kind,
    *,
    base: str = "",
    metrics: dict[str, float] | None = None,
    lineage: Lineage | None = None,
) -> Manifest:
    """Hash a tree and make its manifest."""
    files = hash_tree(tree)
    return Manifest(
        content_id=content_id(kind, files),
        kind=kind,
        base=base,
        files=files,
        metrics=metrics or {},
        lineage=lineage or Lineage(),
    )


def verify(tree: Path, manifest: Manifest) -> None:
    """Check a tree against its manifest.

    Raises:
        Poison: a file is missing, is too many, or differs.
    """
    found = hash_tree(tree)
    if found != manifest.files:
        wrong = sorted(
            name
            for name in found.keys() | manifest.files.keys()
            if found.get(name) != manifest.files.get(name)
        )
        raise Poison(
            f"content {manifest.content_id} does not match its manifest at: {', '.join(wrong[:5])}"
        )


def read_manifest(tree: Path) -> Manifest:
    """The manifest beside the files of a materialised tree."""
    return Manifest.model_validate_json((tree / MANIFEST_NAME).read_bytes())


def materialize(store: ArtifactStore, content: str, scenario: str, root: Path) -> Path:
    """The verified files of `content` under `root`, fetched once, and again where the copy was damaged since: the store has the whole one.

    The path is new for every content, as an engine's caches need it.
    """
    target = root / check_content_id(content)
    if target.is_dir():
        try:
            verify(target, read_manifest(target))
        except (Poison, ValueError, FileNotFoundError) as error:
            log.warning("copy_damaged", path=str(target), reason=str(error))
            _put_away(target)
        else:
            return target
    store.get(content, scenario, target)
    return target


def _put_away(tree: Path) -> None:
    """Remove a tree in one step. What a death leaves of it is removed as `staged` removes leftovers."""
    try:
        away = Path(tempfile.mkdtemp(prefix=".partial-", dir=tree.parent))
        tree.rename(away / tree.name)
    except OSError as error:
        raise Unavailable(f"cannot remove the damaged copy {tree}: {error}") from error
    shutil.rmtree(away, ignore_errors=True)


def check_content_id(content: str) -> str:
    """A content id becomes a path and a ref, and comes from whoever proposes: raises Poison for what is not one."""
    if not _CONTENT_ID.fullmatch(content):
        raise Poison(f"not a content id: {content!r:.200}")
    return content


def check_complete(tree: Path, manifest: Manifest) -> None:
    """What a store checks before it takes a tree: the files are those of the manifest, and the content id is theirs.

    Raises:
        Poison: they are not.
    """
    verify(tree, manifest)
    expected = content_id(manifest.kind, manifest.files)
    if manifest.content_id != expected:
        raise Poison(f"the manifest says {manifest.content_id}, the files are {expected}")


@contextmanager
def staged(destination: Path) -> Iterator[Path]:
    """An empty directory beside `destination` that becomes it, verified, when the block ends; nothing is left where it fails.

    The block writes the files and the manifest. What a killed process left behind is removed by a later call.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    for leftover in destination.parent.glob(".partial-*"):
        with suppress(FileNotFoundError):  # another process has just put it in place
            if leftover.stat().st_mtime < time.time() - _PARTIAL_KEPT_S:
                shutil.rmtree(leftover, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=".partial-", dir=destination.parent))
    try:
        yield directory
        verify(directory, read_manifest(directory))
        directory.chmod(0o755)
        replace_tree(directory, destination)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def write_synced(path: Path, chunks: Iterator[bytes]) -> None:
    """Write a file and wait until it is on the disk, since a rename may be durable before the bytes are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        for chunk in chunks:
            stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())


def replace_tree(staged: Path, destination: Path) -> None:
    """Put a complete staged tree in place by one rename; what another process put there first is kept."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(staged, destination)
    except OSError as error:
        if not destination.is_dir():
            raise Transient(f"cannot put {destination} in place: {error}") from error
        shutil.rmtree(staged, ignore_errors=True)
