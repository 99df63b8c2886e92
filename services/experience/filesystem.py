"""Large bodies as files named by their digest: the claim check on one machine."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from reefcommon.errors import Poison
from reefcommon.events import BodyRef


@dataclass(frozen=True, slots=True)
class FilesystemBodies:
    """BodyStore on a directory: `<root>/<sha256>` holds `{"request": …, "response": …}`. The reference's URI is not followed: only its
    digest names the file, so that no reference leads out of the directory."""

    root: Path

    async def read(self, ref: BodyRef) -> Mapping[str, Any]:
        """Raises Poison where the body is not there or is not what its digest says."""
        return await asyncio.to_thread(self._read, ref)

    def _read(self, ref: BodyRef) -> Mapping[str, Any]:
        if len(ref.sha256) != 64 or not all(digit in "0123456789abcdef" for digit in ref.sha256):
            raise Poison(f"not a SHA-256 digest: {ref.sha256[:80]!r}")
        try:
            content = (self.root / ref.sha256).read_bytes()
        except FileNotFoundError:
            raise Poison(f"the body {ref.sha256} is not in {self.root}") from None
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise Poison(f"the body {ref.sha256} is not what its digest says")
        body = from_json(content)
        if not isinstance(body, dict):
            raise Poison(f"the body {ref.sha256} is not a JSON object")
        return body
