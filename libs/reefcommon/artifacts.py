"""Artifacts: a tree of files with a manifest, kept by digest.

The `content_id` is the digest of the kind and of the sorted (path, SHA-256) pairs.
"""

import hashlib
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
_NEVER_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\\]")
_PARTIAL_KEPT_S = 3600
BASE_CONTENT_ID = "base"
"""The content of a scenario's first release: the base model as it is, no artifact."""


class Manifest(BaseModel):
    """The files and the origin of a tree."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    content_id: str
    kind: Kind
    base: str = ""
    files: dict[str, str]
    metrics: dict[str, float] = {}
    lineage: Lineage = Lineage()


class ArtifactStore(Protocol):
    """A store of trees. All calls block and may be repeated."""

    def put(self, tree: Path, manifest: Manifest, scenario: str) -> str:
        """Store a tree and return its content id.

        Raises:
            Poison: the tree is not that of its manifest.
            Unavailable: the store does not take it now.
        """

    def get(self, content_id: str, scenario: str, destination: Path) -> Manifest:
        """Write a tree to `destination` by one rename, verified.

        Raises:
            Poison: there is no such content, or a file does not match its digest.
            Unavailable: the store does not answer.
        """

    def drop(self, contents: Collection[str], scenario: str) -> None:
        """Forget contents. No release may name them."""


def safe_path(name: str) -> PurePosixPath:
    """Return a path inside a tree. Raises Poison if it is absolute, empty, has `..` or controls."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or _NEVER_IN_PATHS.search(name):
        raise Poison(f"not a path inside an artifact: {name!r}")
    return path


def hash_tree(tree: Path) -> dict[str, str]:
    """Return relative POSIX path -> SHA-256. Raises Poison for a link or a special file."""
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
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_id(kind: Kind, files: dict[str, str]) -> str:
    return f"{kind}-{digest(kind, sorted(files.items()))}"


def describe(
    tree: Path,
    kind: Kind,
    *,
    base: str = "",
    metrics: dict[str, float] | None = None,
    lineage: Lineage | None = None,
) -> Manifest:
    files = hash_tree(tree)
    return Manifest(
        content_id=content_id(kind, files),
        kind=kind,
        base=base,
        files=files,
        metrics=metrics or {},
        lineage=lineage or Lineage(),
    )


def origin(manifest: Manifest, scenario: str) -> dict[str, str]:
    """Return the facts that a store shows beside a content."""
    lineage = manifest.lineage
    facts = {
        "scenario": scenario,
        "base": manifest.base,
        "recipe": lineage.recipe,
        "job": lineage.job_id,
        "step": lineage.step,
        "samples": len(lineage.sample_ids) or None,
    }
    return {key: str(value) for key, value in facts.items() if value not in (None, "")}


def verify(tree: Path, manifest: Manifest) -> None:
    """Check a tree. Raises Poison if a file is missing, is too many, or differs."""
    found = hash_tree(tree)
    # The (path, digest) pairs that only one side has.
    if wrong := sorted({name for name, _ in found.items() ^ manifest.files.items()}):
        at = ", ".join(wrong[:5])
        raise Poison(f"content {manifest.content_id} does not match its manifest at: {at}")


def read_manifest(tree: Path) -> Manifest:
    return Manifest.model_validate_json((tree / MANIFEST_NAME).read_bytes())


def materialize(store: ArtifactStore, content: str, scenario: str, root: Path) -> Path:
    """Return `root/<content id>`, fetched if it is missing or damaged."""
    # A path for each content: engines cache by path.
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
    # One rename; `staged` removes the leftovers of a killed process.
    try:
        away = Path(tempfile.mkdtemp(prefix=".partial-", dir=tree.parent))
        tree.rename(away / tree.name)
    except OSError as error:
        raise Unavailable(f"cannot remove the damaged copy {tree}: {error}") from error
    shutil.rmtree(away, ignore_errors=True)


def check_content_id(content: str) -> str:
    """Return `content`. Raises Poison if it is not a content id."""
    if not _CONTENT_ID.fullmatch(content):
        raise Poison(f"not a content id: {content!r:.200}")
    return content


def check_complete(tree: Path, manifest: Manifest) -> None:
    """Raises Poison if the files or the content id of the manifest differ."""
    verify(tree, manifest)
    expected = content_id(manifest.kind, manifest.files)
    if manifest.content_id != expected:
        raise Poison(f"the manifest says {manifest.content_id}, the files are {expected}")


@contextmanager
def staged(destination: Path) -> Iterator[Path]:
    """Give an empty directory that becomes `destination`, verified, when the block ends.

    The block writes the files and the manifest. If it fails no file is left.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    # The leftovers of killed processes.
    for leftover in destination.parent.glob(".partial-*"):
        with suppress(FileNotFoundError):  # another process may have just put it in place
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


def replace_tree(staged: Path, destination: Path) -> None:
    """Put a tree in place by one rename. An existing tree is kept."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        staged.rename(destination)
    except OSError as error:
        if not destination.is_dir():
            raise Transient(f"cannot put {destination} in place: {error}") from error
        shutil.rmtree(staged, ignore_errors=True)
