"""The entry of an idempotency key."""

import base64
from dataclasses import dataclass, fields
from typing import Literal

import orjson

Kind = Literal["inference", "report", "proposal"]
# open: its exchange is under way; `owner` does the work
# done: `answer` is what was sent; None if it was too large to be kept
# free: certainly no event was recorded under it
# unsure: the work ended before the Unix time `ended_at`; the log knows if there is an event
State = Literal["open", "done", "free", "unsure"]
MAX_KEPT_ANSWER_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """The state of a key's work, and the answer that was sent."""

    digest: str
    kind: Kind
    scenario: str
    shard: str
    state: State = "open"
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    answer: bytes | None = None
    owner: str = ""
    ended_at: float = 0.0

    def encode(self) -> bytes:
        """One line of JSON, then the answer as it was sent."""
        head = {each.name: getattr(self, each.name) for each in fields(self)}
        head["kept"] = head.pop("answer") is not None
        head["headers"] = [[base64.b64encode(part).decode() for part in p] for p in self.headers]
        return orjson.dumps(head) + b"\n" + (self.answer or b"")

    @classmethod
    def decode(cls, data: bytes) -> "KeyEntry":
        """The entry that `encode` wrote."""
        line, _, answer = data.partition(b"\n")
        head = orjson.loads(line)
        kept = head.pop("kept")
        head["headers"] = tuple(tuple(map(base64.b64decode, pair)) for pair in head["headers"])
        return cls(**head, answer=answer if kept else None)
