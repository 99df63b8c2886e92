"""The gateway's ports in memory."""

import asyncio
import hashlib
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from reefcommon import topics
from reefcommon.errors import Conflict, Unavailable
from reefcommon.events import BodyRef, FeedbackReported, InferenceRecorded, Release
from services.gateway.domain.keys import KeyEntry
from services.gateway.domain.log_event import LogEvent
from services.gateway.ports import Command, News, NotDurable

# Else a stack of this machine on the usual ports would answer.
NO_SERVICES = dict.fromkeys(
    ("experience_url", "trainer_url", "harness_url", "evaluator_url", "publisher_url"),
    "http://127.0.0.1:9",
)


@dataclass
class MemoryLog:
    """RecordLog that keeps what it is given. `gate` holds acknowledgements back; `broken` refuses them; `unconfirmed` keeps them, and says
    that nobody knows; `full` has no room."""

    appended: list[tuple[str, bytes, str]] = field(default_factory=list)
    broken: bool = False
    unconfirmed: bool = False
    full: bool = False
    gate: asyncio.Event | None = None

    async def append(self, event: LogEvent) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.broken:
            raise NotDurable("broken, as asked")
        self.appended.append((event.topic, event.data, event.shard))
        if self.unconfirmed:
            raise NotDurable("not confirmed, as asked")

    async def failure(self) -> str | None:
        return "broken, as asked" if self.broken else None

    def refusal(self) -> str | None:
        return "full, as asked" if self.full else None

    def waiting_since(self) -> float | None:
        return None

    @property
    def records(self) -> list[InferenceRecorded]:
        """What a reader decodes. Reading them this way is what keeps the hand-built event and the model together."""
        return [
            InferenceRecorded.model_validate_json(value)
            for topic, value, _ in self.appended
            if topic == topics.INFERENCES.name
        ]

    @property
    def reports(self) -> list[FeedbackReported]:
        return [
            FeedbackReported.model_validate_json(value)
            for topic, value, _ in self.appended
            if topic == topics.FEEDBACK.name
        ]

    async def record(self, receipt: str) -> InferenceRecorded:
        """Waits for a record, for tests whose client left before it was written."""
        for _ in range(300):
            for record in self.records:
                if record.event_id == receipt:
                    return record
            await asyncio.sleep(0.01)
        raise AssertionError(f"no record {receipt}")


class MemoryBodies:
    """BodyStore in memory."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    async def keep(self, body: bytes) -> BodyRef:
        digest = hashlib.sha256(body).hexdigest()
        self.bodies[digest] = body
        return BodyRef(uri=f"memory:{digest}", sha256=digest, size_bytes=len(body))


class MemoryHeads:
    """ReleaseHeads in memory."""

    def __init__(self) -> None:
        self.chains: dict[str, list[Release]] = {}
        self.waiting: dict[str, list[Release]] = {}
        self.holds: dict[str, str | None] = {}

    async def hold(self, scenario: str, reason: str | None) -> None:
        self.holds[scenario] = reason

    async def held(self, scenario: str) -> str | None:
        return self.holds.get(scenario)

    async def head(self, scenario: str) -> Release | None:
        return self.chains[scenario][0] if self.chains.get(scenario) else None

    async def chain(self, scenario: str, *, limit: int = 100) -> list[Release]:
        return self.chains.get(scenario, [])[:limit]

    async def release(self, scenario: str, release_id: str) -> Release | None:
        rows = self.chains.get(scenario, []) + self.waiting.get(scenario, [])
        return next((row for row in rows if row.release_id == release_id), None)

    async def advance(self, release: Release) -> None:
        head = await self.head(release.scenario)
        if (head.release_id if head else None) != release.parent_id:
            raise Conflict("another head")
        self.chains.setdefault(release.scenario, []).insert(0, release)

    async def scenarios(self) -> list[str]:
        return sorted(self.chains)

    async def put_pending(self, release: Release) -> None:
        self.waiting.setdefault(release.scenario, []).append(release)

    async def pending(self, scenario: str) -> list[Release]:
        return self.waiting.get(scenario, [])

    async def drop_pending(self, scenario: str, release_id: str) -> None:
        self.waiting[scenario] = [
            row for row in self.waiting.get(scenario, []) if row.release_id != release_id
        ]


class MemoryKeyStore:
    """KeyStore in memory; two gateways may share one. A key that is not in `leased` is nobody's work."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.leased: set[str] = set()
        self.away = False
        self.remembers_since = 0.0

    def _here(self) -> None:
        if self.away:
            raise Unavailable("away, as asked")

    async def claim(self, key: str, entry: KeyEntry, *, lease_s: float) -> KeyEntry | None:
        self._here()
        await asyncio.sleep(0)
        before = KeyEntry.decode(self.entries[key]) if key in self.entries else None
        if before is not None and (before.state == "done" or key in self.leased):
            return before
        self.entries[key] = entry.encode()
        if lease_s:
            self.leased.add(key)
        if before is not None and before.state == "open":
            return replace(before, state="unsure", ended_at=time.time())
        return before

    async def renew(self, key: str, entry: KeyEntry, *, lease_s: float) -> bool:
        self._here()
        if self.entries.setdefault(key, entry.encode()) != entry.encode():
            return False
        self.leased.add(key)
        return True

    async def since(self) -> float:
        self._here()
        return self.remembers_since

    async def complete(self, key: str, entry: KeyEntry) -> None:
        self._here()
        self.entries[key] = entry.encode()
        self.leased.discard(key)

    async def forget(self, key: str) -> None:
        self._here()
        self.entries.pop(key, None)
        self.leased.discard(key)

    async def find(self, key: str) -> KeyEntry | None:
        self._here()
        found = KeyEntry.decode(self.entries[key]) if key in self.entries else None
        return None if found is None or found.state == "free" else found

    def lose(self) -> None:
        """All memory is gone."""
        self.entries.clear()
        self.leased.clear()


class MemoryReads:
    """Reads of what a test puts there."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.away = False
        self.handled_until = float("inf")

    async def get(
        self, path: str, query: dict[str, str] | None = None, *, timeout_s: float = 10.0
    ) -> tuple[int, bytes]:
        if self.away:
            raise Unavailable("away, as asked")
        self.asked.append((path, query or {}))
        row = self.rows.get(path)
        if row is None and path.startswith("/keys/"):
            complete = self.handled_until >= float((query or {})["until"])
            return 404, orjson.dumps({"complete": complete})
        if row is None:
            return 404, orjson.dumps(
                {
                    "error": {
                        "message": "no such record",
                        "type": "reef_error",
                        "code": "record_not_found",
                    }
                }
            )
        return 200, orjson.dumps(row)


class MemoryCommands:
    """CommandBus whose answers a test decides."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.answers: list[News | BaseException] = []

    async def submit(self, command: Command, *, timeout_s: float) -> News:
        self.sent.append(command)
        answer = self.answers.pop(0) if self.answers else TimeoutError()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def release(scenario: str, sequence: int, adapter: str | None, **fields: Any) -> Release:
    """A release of a test's own."""
    return Release(
        **{
            "release_id": f"rel-{scenario}-{sequence}",
            "scenario": scenario,
            "sequence": sequence,
            "parent_id": f"rel-{scenario}-{sequence - 1}" if sequence else None,
            "kind": "lora" if adapter else "base",
            "content_id": f"content-{sequence}",
            "operation": "training" if sequence else "creation",
            "load_id": f"inc-1:{sequence}",
            "adapter": adapter,
            "created_at": datetime(2026, 1, 1, tzinfo=UTC),
            **fields,
        }
    )
