"""ArtifactStore on lakeFS, through the vendor's `lakefs` client.

A put uploads to its own branch and merges it, so that two processes never share uncommitted
changes.
"""

# lakeFS commits without a compare-and-swap: the release heads alone decide which content serves.
#
# branch <scenario>                contents/<content id>/<file>: every content, merged in whole
# tag <scenario>-<content id>      the commit that brought it

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import lakefs
import urllib3.exceptions
from lakefs import exceptions

from reefcommon import artifacts
from reefcommon.artifacts import MANIFEST_NAME, Manifest
from reefcommon.errors import BadConfig, Poison, Unavailable
from reefcommon.files import chunks, write_synced

_CHUNK_BYTES = 8 * 1024 * 1024
_URL = re.compile(r"lakefs(\+https)?://([^:/@]+)(?::([^/@]*))?@([^/@]+)/+([^/?#]+)/*")


class LakeFSArtifactStore:
    """A repository: `lakefs://key:secret@host:port/repository`, or `lakefs+https://`."""

    def __init__(self, url: str) -> None:
        """Raises BadConfig for another form of URL."""
        parts = _URL.fullmatch(url)
        if parts is None:
            raise BadConfig(
                "REEF_ARTIFACTS_URL: must be lakefs://key:secret@host:port/repository "
                "(lakefs+https:// for TLS)"
            )
        tls, key, secret, address, name = parts.groups(default="")
        self._name = f"lakeFS at {address}/{name}"
        self._client = lakefs.Client(  # type: ignore[no-untyped-call]
            host=f"{'https' if tls else 'http'}://{address}",
            username=unquote(key),
            password=unquote(secret),
        )
        self._repository = lakefs.Repository(name, client=self._client)

    def put(self, tree: Path, manifest: Manifest, scenario: str) -> str:
        artifacts.check_complete(tree, manifest)
        with self._answering(f"put {manifest.content_id}"):
            tag = _tag(scenario, manifest.content_id)
            if self._holds(tag, manifest.content_id):
                return manifest.content_id
            branch = self._repository.branch(_branch(scenario))
            branch.create(self._repository.properties.default_branch, exist_ok=True)
            if not self._holds(branch.id, manifest.content_id):
                self._upload(branch, tree, manifest, scenario)
            self._repository.tag(tag).create(branch.head, exist_ok=True)
        return manifest.content_id

    def get(self, content_id: str, scenario: str, destination: Path) -> Manifest:
        reference = self._repository.tag(_tag(scenario, artifacts.check_content_id(content_id)))
        try:
            with self._answering(f"get {content_id}"), artifacts.staged(destination) as directory:
                text = b"".join(self._read(reference, content_id, MANIFEST_NAME))
                manifest = Manifest.model_validate_json(text)
                if manifest.content_id != content_id:
                    raise Poison(f"lakeFS holds {manifest.content_id} under the name {content_id}")
                for name in manifest.files:
                    content = self._read(reference, content_id, name)
                    write_synced(directory / artifacts.safe_path(name), content)
                write_synced(directory / MANIFEST_NAME, iter([text]))
        except exceptions.NotFoundException:
            what = f"no content {content_id!r} of scenario {scenario!r}"
            raise Poison(f"{what} in {self._name}") from None
        return manifest

    def drop(self, contents: Collection[str], scenario: str) -> None:
        # Tags and files go now; the bytes go when lakeFS collects garbage.
        for content in contents:
            with self._answering(f"put {artifacts.check_content_id(content)}"):
                tag = _tag(scenario, content)
                if not self._holds(tag, content):
                    continue
                manifest = Manifest.model_validate_json(
                    b"".join(self._read(self._repository.tag(tag), content, MANIFEST_NAME))
                )
                branch = self._repository.branch(_branch(scenario))
                if self._holds(branch.id, content):
                    names = (*manifest.files, MANIFEST_NAME)
                    with branch.transact(
                        commit_message=f"drop {content}",
                        commit_metadata=_metadata(manifest, scenario),
                    ) as change:
                        change.delete_objects([f"contents/{content}/{name}" for name in names])
                self._repository.tag(tag).delete()

    def _holds(self, reference: str, content_id: str) -> bool:
        path = f"contents/{content_id}/{MANIFEST_NAME}"
        return bool(self._repository.ref(reference).object(path).exists())

    def _upload(self, branch: lakefs.Branch, tree: Path, manifest: Manifest, scenario: str) -> None:
        message = f"{manifest.kind} of {scenario}: {manifest.content_id}"
        try:
            with branch.transact(
                commit_message=message, commit_metadata=_metadata(manifest, scenario)
            ) as change:
                sources = {name: chunks(tree / name) for name in manifest.files}
                sources[MANIFEST_NAME] = iter([manifest.model_dump_json().encode()])
                for name, source in sources.items():
                    target = change.object(f"contents/{manifest.content_id}/{name}")
                    with target.writer("wb", pre_sign=False) as upload:
                        for chunk in source:
                            upload.write(chunk)
        except exceptions.TransactionException:
            # lakeFS refuses an empty merge: another process has brought the same content.
            if not self._holds(branch.id, manifest.content_id):
                raise

    def _read(self, reference: lakefs.Reference, content_id: str, name: str) -> Iterator[bytes]:
        with reference.object(f"contents/{content_id}/{name}").reader(
            "rb", pre_sign=False
        ) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                assert isinstance(chunk, bytes)
                yield chunk

    @contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        try:
            yield
        except exceptions.NotAuthorizedException as error:
            refused = "refuses the credentials of REEF_ARTIFACTS_URL"
            raise Unavailable(f"{self._name} {refused} ({what})") from error
        except exceptions.NotFoundException:
            if not what.startswith("put"):
                raise
            raise Unavailable(f"{self._name}: no such repository; create it first") from None
        # An OSError is that of this machine's disk.
        except (exceptions.LakeFSException, urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"{self._name} does not answer ({what}): {error}") from error


def _branch(scenario: str) -> str:
    # lakeFS allows no dot in a branch's name, and a scenario has no capital letter.
    return scenario.replace(".", "D")


def _tag(scenario: str, content_id: str) -> str:
    return f"{_branch(scenario)}-{content_id}"


def _metadata(manifest: Manifest, scenario: str) -> dict[str, str]:
    return {"kind": manifest.kind, **artifacts.origin(manifest, scenario)}
