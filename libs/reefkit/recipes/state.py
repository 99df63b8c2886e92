"""The state of a recipe during a call: the job store's values under the call's own writes."""

import json
from typing import Any

import orjson

from reefkit.jobs.recipe_store import Effects, RecipeStore, Write

MAX_KEY_CHARS = 256
MAX_VALUE_BYTES = 64 * 1024 * 1024
MAX_TOTAL_BYTES = 1024 * 1024 * 1024
# A dataclass or a date would come back as another type.
_STRICT = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


class BufferedState:
    """`State` of a call. Reads are remembered, so that a concurrent change is found."""

    def __init__(self, store: RecipeStore, binding: str) -> None:
        self._store, self._binding = store, binding
        self._writes: dict[str, Write] = {}
        self._reads: dict[str, int] = {}
        self._listed: dict[str, tuple[str, ...]] = {}
        self._sizes: dict[str, int] = {}
        self._written = 0
        self._stored_bytes: int | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of a JSON value."""
        value = self._read(key).json
        return default if value is None else orjson.loads(value)

    def put(self, key: str, value: Any) -> None:
        """Raises TypeError or ValueError if `value` is no JSON, or holds NaN or infinity."""
        orjson.dumps(value, option=_STRICT)  # keys must be texts, which `json` does not ask for
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        self._write(Write(key, json=text), len(text))

    def blob(self, key: str) -> bytes | None:
        return self._read(key).blob

    def put_blob(self, key: str, value: bytes) -> None:
        self._write(Write(key, blob=bytes(value)), len(value))

    def drop(self, key: str) -> None:
        self._write(Write(key), 0)

    def keys(self, prefix: str = "") -> list[str]:
        stored = self._store.state_keys(self._binding, prefix)
        self._listed.setdefault(prefix, tuple(stored))
        found = set(stored)
        for key, write in self._writes.items():
            if key.startswith(prefix):
                gone = write.json is None and write.blob is None
                (found.discard if gone else found.add)(key)
        return sorted(found)

    def effects(self, subject: str = "") -> Effects:
        """Return the writes so far, to be saved with the result of the call."""
        writes, reads, listed = tuple(self._writes.values()), dict(self._reads), dict(self._listed)
        return Effects(self._binding, subject, writes, reads, listed)

    def saved(self) -> None:
        """Forget writes and reads after they were saved."""
        for remembered in (self._writes, self._reads, self._listed, self._sizes):
            remembered.clear()
        self._written, self._stored_bytes = 0, None

    def _read(self, key: str) -> Write:
        if key in self._writes:
            return self._writes[key]
        found = self._store.state_value(self._binding, key)
        version, text, blob = found or (0, None, None)
        self._reads.setdefault(key, version)
        return Write(key, text, blob)

    def _write(self, write: Write, size: int) -> None:
        if not isinstance(write.key, str) or not 0 < len(write.key) <= MAX_KEY_CHARS:
            raise ValueError(f"a key of ctx.store is a text of 1 to {MAX_KEY_CHARS} characters")
        if size > MAX_VALUE_BYTES:
            limit = f"{MAX_VALUE_BYTES // 1024**2} MB"
            raise ValueError(f"{write.key!r}: a value of ctx.store has at most {limit}")
        written = self._written + size - self._sizes.get(write.key, 0)
        if size and self._total(written, write.key) > MAX_TOTAL_BYTES:
            limit = f"{MAX_TOTAL_BYTES // 1024**2} MB"
            raise ValueError(
                f"{write.key!r}: ctx.store holds at most {limit} of a recipe: drop keys"
            )
        self._writes[write.key], self._sizes[write.key], self._written = write, size, written

    def _total(self, written: int, key: str) -> int:
        # At first as if no key were overwritten: the exact number reads all rows again.
        if self._stored_bytes is None:
            self._stored_bytes = self._store.state_bytes(self._binding)
        if (total := self._stored_bytes + written) <= MAX_TOTAL_BYTES:
            return total
        return self._store.state_bytes(self._binding, without={key, *self._sizes}) + written
