"""Identities: their forms, and the facts that can be read from them."""

# record_id   the receipt, `rec-<32 hex, time-ordered>-<4 hex shard>`: sortable; the shard tells the
#             partition of its conversation
# report_id   `rep-<32 hex>-<4 hex shard>`, with the shard of its first receipt
# session_id  the client's tag, or `ses-<32 hex>`
# sample_id, unit_id, job_id, candidate_id, content_id   digests: equal inputs give equal ids
# release_id  a publication in a scenario's chain
# load_id     `<incarnation>:<sequence>`: a load of a content by the serving fleet

import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

SCENARIO_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,62}$"
RECORD_PATTERN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")
_OWN_RECORD = re.compile(r"^(?:rec|rep)-([0-9a-f]{12})[0-9a-f]{20}-([0-9a-f]{4})$")


def time_ordered_hex(now_ms: int | None = None, random: bytes | None = None) -> str:
    """Return 32 hex digits in the layout of UUIDv7 (RFC 9562, section 5.7)."""
    ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    tail = bytearray(os.urandom(10) if random is None else random)
    tail[0] = (tail[0] & 0x0F) | 0x70
    tail[2] = (tail[2] & 0x3F) | 0x80
    return f"{ms:012x}{tail.hex()}"


def digest(*parts: object, length: int = 32) -> str:
    """Return `length` hex digits of SHA-256 over the canonical JSON of `parts`."""
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:length]


def shard_of(scenario: str, *identity: str) -> str:
    """Return 4 hex digits of a hash of the parts that all turns of a conversation share."""
    return hashlib.blake2b("\x00".join((scenario, *identity)).encode(), digest_size=2).hexdigest()


def new_record_id(shard: str) -> str:
    return f"rec-{time_ordered_hex()}-{shard}"


def new_report_id(shard: str) -> str:
    return f"rep-{time_ordered_hex()}-{shard}"


def shard_in(receipt: str) -> str | None:
    """Return the shard of Reef's own receipt; None for a client's."""
    match = _OWN_RECORD.fullmatch(receipt)
    return match.group(2) if match else None


def made_at_ms(receipt: str) -> int | None:
    """Return the Unix milliseconds of Reef's own receipt; None for a client's."""
    match = _OWN_RECORD.fullmatch(receipt)
    return int(match.group(1), 16) if match else None


def record_times_ms(receipts: Sequence[str]) -> tuple[int | None, int | None]:
    """Return the Unix milliseconds of the oldest and of the newest receipt.

    A client's receipt has no time: it is ignored for the oldest, and makes the newest None.
    """
    times = [made_at_ms(receipt) for receipt in receipts]
    known = [time for time in times if time is not None]
    return min(known, default=None), max(known) if known and len(known) == len(times) else None


def is_receipt(value: object) -> bool:
    """Return whether `value` has the form of a receipt."""
    return isinstance(value, str) and RECORD_PATTERN.fullmatch(value) is not None


def sample_id(report_id: str, record_ids: tuple[str, ...]) -> str:
    return "smp-" + digest("sample", report_id, record_ids)


def unit_id(kind: str, record_ids: tuple[str, ...]) -> str:
    """Return the id of a turn, or of a part of a session: it follows from the records alone."""
    return "unt-" + digest("unit", kind, record_ids)


def job_id(recipe: str, base_release_id: str, sample_ids: tuple[str, ...]) -> str:
    """Equal recipe, base and samples give an equal id."""
    return "job-" + digest("job", recipe, base_release_id, sorted(sample_ids))


def candidate_id(job_id: str) -> str:
    return "cnd-" + digest("candidate", job_id)


@dataclass(frozen=True, slots=True)
class LoadId:
    """A load of a content by the serving fleet."""

    incarnation: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.incarnation}:{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> "LoadId":
        """Raises ValueError if `text` is not `<incarnation>:<sequence>`."""
        incarnation, _, sequence = text.rpartition(":")
        if not incarnation or not sequence.isdigit():
            raise ValueError(f"not a load id: {text!r}")
        return cls(incarnation, int(sequence))

    def lag_behind(self, serving: "LoadId") -> int | None:
        """Return the lag in loads; None if the incarnations differ."""
        return serving.sequence - self.sequence if serving.incarnation == self.incarnation else None
