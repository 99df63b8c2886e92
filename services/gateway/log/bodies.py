"""Claim checks on one machine: a body too large for the log lies in `<state_dir>/bodies/<sha256>`, and the event refers to it."""

import asyncio
import hashlib
import os
from pathlib import Path

from services.gateway.domain.record import Claim


class FilesystemBodies:
    """BodyStore on a directory. A body is there, synced, before its event is written."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def keep(self, body: bytes) -> Claim:
        """Write a body under its digest; a repeat changes nothing. Raises OSError."""
        return await asyncio.to_thread(self._keep, body)

    def _keep(self, body: bytes) -> Claim:
        digest = hashlib.sha256(body).hexdigest()
        path = self._root / digest
        claim = Claim(uri=path.resolve().as_uri(), sha256=digest, size_bytes=len(body))
        if path.exists():
            return claim
        self._root.mkdir(parents=True, exist_ok=True)
        partial = self._root / f".{digest}.{os.urandom(4).hex()}"
        with partial.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        directory = os.open(self._root, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return claim
