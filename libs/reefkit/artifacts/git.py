"""ArtifactStore in one bare git repository with Git LFS objects, written by dulwich.

A stock `git clone` with git-lfs installed checks out the same bytes. A put writes the ref last, so
a crash leaves only garbage.
"""

# refs/tags/<scenario>/<content id>  one parentless commit for each content
# lfs/objects/aa/bb/<sha256>         large files, where Git LFS looks for them

import fcntl
import tempfile
import time
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from dulwich.errors import ChecksumMismatch, FileFormatException, NotGitRepository
from dulwich.index import commit_tree
from dulwich.lfs import LFSPointer
from dulwich.object_store import MemoryObjectStore, iter_tree_contents
from dulwich.objects import Blob, Commit, ObjectID
from dulwich.repo import Repo

from reefcommon import artifacts
from reefcommon.artifacts import MANIFEST_NAME, Manifest
from reefcommon.errors import Poison, Unavailable
from reefcommon.files import chunks, write_synced
from reefkit.artifacts.git_refs import detach, move, pointer_of, remove, sweep, tag_of, write_loose

LARGE_BYTES = 64 * 1024
_RESERVED = {".git", ".gitattributes", ".gitmodules", ".lfsconfig"}
_DAMAGED = (zlib.error, FileFormatException, ChecksumMismatch, ValueError, TypeError)
"""Errors of git objects and of a manifest that are damaged."""
_AUTHOR = b"Reef <reef@localhost>"


class GitArtifactStore:
    """A bare repository, made at the first put. Many processes may use it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, tree: Path, manifest: Manifest, scenario: str) -> str:
        artifacts.check_complete(tree, manifest)
        for name in manifest.files:
            if _RESERVED & {part.lower() for part in artifacts.safe_path(name).parts}:
                raise Poison(f"git gives {name!r} a meaning of its own: an artifact cannot hold it")
        with self._writing() as repo:
            if tag_of(scenario, manifest.content_id) not in repo.refs:
                self._commit(repo, tree, manifest, scenario)
        return manifest.content_id

    def get(self, content_id: str, scenario: str, destination: Path) -> Manifest:
        artifacts.check_content_id(content_id)
        named = f"{content_id!r} of scenario {scenario!r} in {self._path}"
        try:
            with Repo(str(self._path)) as repo, artifacts.staged(destination) as directory:
                commit = repo[repo.refs[tag_of(scenario, content_id)]]
                assert isinstance(commit, Commit)
                for entry in iter_tree_contents(repo.object_store, commit.tree):
                    assert entry.path is not None
                    assert entry.sha is not None
                    name = entry.path.decode()
                    blob = repo.object_store[entry.sha]
                    assert isinstance(blob, Blob)
                    if name != ".gitattributes":
                        write_synced(directory / artifacts.safe_path(name), self._content(blob))
                manifest = Manifest.model_validate_json((directory / MANIFEST_NAME).read_bytes())
                if manifest.content_id != content_id:
                    raise Poison(f"{self._path} holds {manifest.content_id} as {content_id}")
        except (NotGitRepository, KeyError):
            raise Poison(f"no content {named}") from None
        except _DAMAGED as error:
            raise Poison(f"content {named} is damaged: {error}") from error
        except OSError as error:
            raise Unavailable(f"cannot read {content_id} from {self._path}: {error}") from error
        return manifest

    def drop(self, contents: Collection[str], scenario: str) -> None:
        refs = [tag_of(scenario, artifacts.check_content_id(content)) for content in contents]
        try:
            with self._writing() as repo:
                detach(repo, scenario)
                # Bytes go one call after their ref, so that a reader that has begun can finish.
                sweep(repo, self._path / "lfs" / "objects")
                for ref in refs:
                    remove(repo, ref)
        except (KeyError, *_DAMAGED) as error:
            fault = f"{self._path} is damaged, so that nothing is dropped"
            raise Unavailable(f"{fault}: {error!r}; `git fsck` names the objects") from error

    @contextmanager
    def _writing(self) -> Iterator[Repo]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.with_name(self._path.name + ".lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self._path.exists():
                    self._create()
                with Repo(str(self._path)) as repo:
                    yield repo
        except OSError as error:
            what = f"the artifact repository {self._path}"
            raise Unavailable(f"{what} cannot be written: {error}") from error

    def _create(self) -> None:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=self._path.parent) as fresh:
            made = Path(fresh) / "repo"
            Repo.init_bare(made, mkdir=True, default_branch=b"default").close()
            made.rename(self._path)

    def _commit(self, repo: Repo, tree: Path, manifest: Manifest, scenario: str) -> None:
        blobs, large = self._blobs(tree, manifest)
        attributes = "".join(map(_attribute, large))
        blobs[".gitattributes"] = Blob.from_string(attributes.encode())
        blobs[MANIFEST_NAME] = Blob.from_string(manifest.model_dump_json(indent=1).encode() + b"\n")
        commit = Commit()
        commit.tree = self._write_trees(repo, blobs)
        commit.parents = []
        commit.author = commit.committer = _AUTHOR
        commit.author_time = commit.commit_time = int(time.time())
        commit.author_timezone = commit.commit_timezone = 0
        commit.encoding = b"UTF-8"
        commit.message = _message(manifest, scenario)
        write_loose(repo, commit)
        move(repo, tag_of(scenario, manifest.content_id), None, commit.id)

    def _blobs(self, tree: Path, manifest: Manifest) -> tuple[dict[str, Blob], list[str]]:
        blobs: dict[str, Blob] = {}
        large: list[str] = []
        for name, sha256 in sorted(manifest.files.items()):
            source = tree / name
            size = source.stat().st_size
            data = source.read_bytes() if size < LARGE_BYTES else None
            # Git would take a small file that looks like a pointer for one: store it as large.
            if data is None or LFSPointer.from_bytes(data) is not None:
                self._write_lfs(source, sha256)
                data = LFSPointer(sha256, size).to_bytes()
                large.append(name)
            blobs[name] = Blob.from_string(data)
        return blobs, large

    def _write_lfs(self, source: Path, sha256: str) -> None:
        target = self._large(sha256)
        if target.exists() and target.stat().st_size == source.stat().st_size:
            return
        partial = self._path / "lfs" / "tmp" / sha256
        write_synced(partial, chunks(source))
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(target)

    def _write_trees(self, repo: Repo, blobs: dict[str, Blob]) -> ObjectID:
        made = MemoryObjectStore()
        made.add_objects([(blob, None) for blob in blobs.values()])
        entries = [(name.encode(), blob.id, 0o100644) for name, blob in blobs.items()]
        root = commit_tree(made, entries)
        for name in made:
            write_loose(repo, made[name])
        return root

    # `staged` verifies the digests of all files at the end.
    def _content(self, blob: Blob) -> Iterator[bytes]:
        pointer = pointer_of(blob)
        if pointer is None:
            return iter([blob.as_raw_string()])
        if not (large := self._large(pointer.oid)).is_file():
            raise Poison(f"the LFS object {pointer.oid} is missing from {self._path}")
        return chunks(large)

    def _large(self, sha256: str) -> Path:
        return self._path / "lfs" / "objects" / sha256[:2] / sha256[2:4] / sha256


def _attribute(name: str) -> str:
    escaped = "".join(f"\\{c}" if c in "*?[" else c for c in name)
    pattern = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"/{pattern}" filter=lfs diff=lfs merge=lfs -text\n'


def _message(manifest: Manifest, scenario: str) -> bytes:
    facts = {"content": manifest.content_id, **artifacts.origin(manifest, scenario)}
    lines = [f"{key.capitalize()}: {value}" for key, value in facts.items()]
    head = f"{manifest.kind} of {scenario}: {manifest.content_id}"
    return "\n".join([head, "", *lines, ""]).encode()
