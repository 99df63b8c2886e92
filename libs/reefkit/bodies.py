"""Bodies that are too large for the log, and the claim checks that refer to them.

An event over `CLAIM_OVER_BYTES` is written to `<root>/<sha256>`. Its message has the header
`reef-claim` (a `BodyRef` as JSON) and the common fields of events as value. Consumers made by
`reefkit.bus` receive the whole event.
"""

import asyncio
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError
from pydantic_core import from_json

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import BodyRef
from reefcommon.files import sync_directory, write_synced

CLAIM_HEADER = "reef-claim"
# Kafka's default limit of a message is 1,048,588 bytes with its key and headers.
CLAIM_OVER_BYTES = 900_000
_READABLE = ("type", "event_id", "at", "scenario", "traceparent")


class BodyMissing(Unavailable):
    """The body store does not have this body. A late mount may still bring it."""


@dataclass(frozen=True, slots=True)
class FilesystemBodies:
    """Bodies in a directory that all services of a deployment share."""

    root: Path

    async def keep(self, body: bytes) -> BodyRef:
        """Write a body durably under its digest. May be repeated. Raises OSError."""
        return await asyncio.to_thread(self._keep, body)

    async def read(self, ref: BodyRef) -> bytes:
        """Return a body, compared with its digest.

        Raises:
            BodyMissing: it is not there.
            Poison: a malformed reference, or another digest.
            Unavailable: the disk does not answer.
        """
        return await asyncio.to_thread(self._read, ref)

    def _keep(self, body: bytes) -> BodyRef:
        digest = hashlib.sha256(body).hexdigest()
        path = self.root / digest
        ref = BodyRef(uri=path.resolve().as_uri(), sha256=digest, size_bytes=len(body))
        if path.exists():
            return ref
        partial = self.root / f".{digest}.{os.urandom(4).hex()}"
        try:
            write_synced(partial, iter([body]))
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        # The name is durable only once its directory is synced, too.
        sync_directory(self.root)
        return ref

    def _read(self, ref: BodyRef) -> bytes:
        # The URI is not followed: the digest alone names the file, so no reference leads elsewhere.
        if len(ref.sha256) != 64 or not all(digit in "0123456789abcdef" for digit in ref.sha256):
            raise Poison(f"not a SHA-256 digest: {ref.sha256[:80]!r}")
        try:
            body = (self.root / ref.sha256).read_bytes()
        except FileNotFoundError:
            raise BodyMissing(f"the body {ref.sha256} is not in {self.root}") from None
        except OSError as error:
            raise Unavailable(f"the body store {self.root} does not answer: {error}") from error
        if hashlib.sha256(body).hexdigest() != ref.sha256:
            raise Poison(f"the body {ref.sha256} is not what its digest says")
        return body


async def claim_check(
    value: bytes, bodies: FilesystemBodies, *, over: int = CLAIM_OVER_BYTES
) -> tuple[bytes, dict[str, str]]:
    """Return (value, headers) to send; a small event unchanged. Raises Unavailable."""
    if len(value) <= over:
        return value, {}
    try:
        ref = await bodies.keep(value)
    except OSError as error:
        raise Unavailable(f"the body store {bodies.root} takes no body: {error}") from error
    return _readable_part(value), {CLAIM_HEADER: ref.model_dump_json()}


def claim_in(headers: Iterable[tuple[str, bytes | None]]) -> BodyRef | None:
    """Return the claim among the headers of a message, if any. Raises Poison."""
    for name, text in headers:
        if name == CLAIM_HEADER:
            try:
                return BodyRef.model_validate_json(text or b"")
            except ValidationError as error:
                raise Poison(f"the header {CLAIM_HEADER} cannot be read: {error}") from None
    return None


async def whole_value(
    value: bytes | None, headers: Iterable[tuple[str, bytes | None]], bodies: FilesystemBodies
) -> bytes:
    """Return the event of a message. Raises as `FilesystemBodies.read`."""
    claim = claim_in(headers)
    return value or b"" if claim is None else await bodies.read(claim)


def _readable_part(value: bytes) -> bytes:
    try:
        fields = from_json(value)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        return b"{}"
    return orjson.dumps({name: fields[name] for name in _READABLE if name in fields})
