"""The gateway's ports, and what it does with a report, a command, and a release that became the head.

request --intake--> exchange --inference--> engine, record, answer     (inference.py: the hot path)
report  --on_report--> FeedbackReported, acknowledged, then 202
command --on_command--> command event, then the release that comes of it
release --on_release--> routing table
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import structlog

from reefcommon import topics
from reefcommon.errors import ReefError, Unavailable
from reefcommon.events import (
    Event,
    FeedbackReported,
    PromoteRequested,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    ScenarioCreateRequested,
    ServingSynced,
)
from reefcommon.ids import new_report_id, shard_in, shard_of, time_ordered_hex
from reefcommon.releases import ReleaseHeads
from services.gateway.domain.errors import ApiError, command_not_sent, no_room, not_durable
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.ledger import Entry, Known
from services.gateway.domain.recent import Recent
from services.gateway.domain.record import Claim
from services.gateway.domain.remembered import entry_of
from services.gateway.domain.report import Report, check_known
from services.gateway.domain.routing import RoutingTable

log = structlog.get_logger()

News = ReleasePublished | ReleasePending | ReleaseRejected | ServingSynced
Command = ScenarioCreateRequested | RollbackRequested | PromoteRequested


class NotDurable(ReefError):
    """The log did not acknowledge in time: the event may or may not be there, and no receipt may be given for it."""


class UpstreamFailed(ReefError):
    """No serving node answered, or the one that did broke off."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def invalid_answer(words: str) -> UpstreamFailed:
    """502: the serving node said something that no client can use."""
    return UpstreamFailed(f"The serving node {words}.", status=502, code="upstream_invalid")


def answer_too_large() -> UpstreamFailed:
    """502: an answer without end."""
    return UpstreamFailed(
        "The serving node's answer went on past its limit (max_answer_bytes).",
        status=502,
        code="upstream_too_large",
    )


class RecordLog(Protocol):
    """Where events become durable, in order within a shard."""

    async def append(self, topic: str, event: bytes, shard: str, traceparent: str = "") -> None:
        """Returns once the event is durable. Raises NotDurable."""

    async def failure(self) -> str | None:
        """What keeps it from taking events, or will before long."""

    def refusal(self) -> str | None:
        """Why no new work may begin: its event would find no place. None, at no cost, where there is room."""


class BodyStore(Protocol):
    """Where bodies lie that are too large for the log."""

    async def keep(self, body: bytes) -> Claim:
        """Returns once the body is durable. Raises OSError."""


class EngineAnswer(Protocol):
    """One answer of a serving node, as it comes. `close` must be called, always."""

    status: int
    headers: list[tuple[bytes, bytes]]
    event_stream: bool

    async def read(self) -> bytes:
        """The whole body. Raises UpstreamFailed."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces of any size. Raises UpstreamFailed."""

    async def close(self, *, finished: bool) -> None:
        """Give the connection back, or cut it where the answer is not finished: the node then stops generating."""


class Engines(Protocol):
    """The serving nodes."""

    async def open(self, exchange: Exchange) -> EngineAnswer:
        """Ask one node, another where it cannot be connected to. Raises UpstreamFailed, or ApiError where a pin cannot be served."""


class Ledger(Protocol):
    """Idempotency keys, shared by all gateways. Every call raises Unavailable where the store does not answer."""

    async def claim(self, key: str, entry: Entry, *, lease_s: float) -> Entry | None:
        """Take the key if nobody has it (None), or if it is free (what was there), else what is there."""

    async def renew(self, key: str, entry: Entry, *, lease_s: float) -> None:
        """Say that its work goes on; where the store has lost the key, it is taken again."""

    async def complete(self, key: str, entry: Entry) -> None:
        """Keep the outcome for the time to live."""

    async def release(self, key: str) -> None:
        """Give the key up: whether anything came of it is not known."""

    async def free(self, key: str, entry: Entry) -> None:
        """Give the key up: nothing was recorded under it, for certain."""

    async def find(self, key: str) -> Entry | None:
        """What is there, unless it is free."""

    async def since(self) -> tuple[float, float]:
        """Unix time since which every key is there (the time to live ago at most), and since when the store remembers anything."""

    async def note(self, key: str) -> Known:
        """Note that the key is used; what is known of it until now."""

    async def call_whole(self) -> None:
        """The log was empty when this store began to remember: what it has no note of was never used."""


class KnownKeys(Protocol):
    """Keys that the ledger does not know any more."""

    async def find(self, key: str) -> dict[str, Any] | None:
        """What the log has under this id; None: nothing, for certain. Raises ApiError where that cannot be said."""


class Reads(Protocol):
    """The experience service's reads."""

    async def get(
        self, path: str, query: dict[str, str] | None = None, *, timeout_s: float = 10.0
    ) -> tuple[int, bytes]:
        """Status and JSON. Raises Unavailable."""


class CommandBus(Protocol):
    """Commands out, what came of them back."""

    async def submit(self, command: Command, *, timeout_s: float) -> News:
        """The release event that names this command. Raises TimeoutError, NotDurable."""


@dataclass(frozen=True)
class Handlers:
    """What arrives at the gateway besides inference, in the order of a scenario's life."""

    log: RecordLog
    table: RoutingTable
    heads: ReleaseHeads
    ledger: Ledger
    keys: KnownKeys
    reads: Reads
    commands: CommandBus
    recent: Recent
    now: Callable[[], Any]
    command_timeout_s: float = 30.0

    async def on_release(self, news: ReleasePublished) -> None:
        """A release became the head somewhere: the next request goes to it."""
        if self.table.publish(news.release):
            log.info(
                "release_routed",
                scenario=news.scenario,
                release_id=news.release.release_id,
                adapter=news.release.adapter,
                operation=news.release.operation,
            )

    async def on_report(self, report: Report, scenario: str, traceparent: str) -> str:
        """Keep one report; returns its id once it is durable. Raises ApiError."""
        if self.log.refusal() is not None:
            raise no_room()
        await self._check_references(report, scenario)
        shard = await self._shard_of_report(report, scenario)
        report_id = report.key or new_report_id(shard)
        digest = report.digest(scenario)
        if report.key is not None:
            entry = Entry(
                digest=digest, kind="report", scenario=scenario, shard=shard, state="done"
            )
            existing = await self._before(report.key) or await self.ledger.claim(
                report.key, entry, lease_s=0
            )
            if (
                existing is not None
                and existing.state != "free"
                and (existing.kind != "report" or existing.digest != digest)
            ):
                words = f"The id {report.key!r} was used before with other content."
                raise ApiError(409, words, code="id_conflict", param="agent_record_id")
        event = FeedbackReported(
            event_id=report_id,
            at=self.now(),
            scenario=scenario,
            traceparent=traceparent,
            references=report.references,
            score=report.score,
            feedback=report.feedback,
            metadata=report.metadata,
            content_digest=digest,
        )
        # A repeat is written again: whether the first one got through is not known, and readers tell repeats by id and digest.
        try:
            await self.log.append(
                topics.FEEDBACK.name,
                event.model_dump_json(exclude_none=True).encode(),
                shard,
                traceparent,
            )
        except NotDurable:
            raise not_durable() from None
        self.recent.add(report_id, scenario, "report")
        return report_id

    async def _before(self, key: str) -> Entry | None:
        """What was reported under this key, today or ever. Asked before the key is taken: what is taken says what was reported."""
        known = await self.ledger.find(key)
        if known is not None:
            return known
        found = await self.keys.find(key)
        return None if found is None else entry_of(found)

    async def _check_references(self, report: Report, scenario: str) -> None:
        unknown = []
        for position, reference in enumerate(report.references):
            known = self.recent.get(reference)
            if known is None:
                unknown.append((position, reference))
            else:
                check_known(position, reference, known, scenario)
        found = await asyncio.gather(*(self._look_up(reference) for _, reference in unknown))
        for (position, reference), known in zip(unknown, found, strict=True):
            if known is not None:
                check_known(position, reference, known, scenario)

    async def _look_up(self, reference: str) -> tuple[str, str] | None:
        """(scenario, kind) of a receipt that another gateway gave, or this one long ago; None where nobody knows it yet."""
        if shard_in(reference) is None:
            entry = await self.ledger.find(reference)
            if entry is not None:
                return entry.scenario, entry.kind
        try:
            status, body = await self.reads.get(f"/records/{reference}", timeout_s=1.0)
        except Unavailable:
            return None
        return known_from(status, body)

    async def _shard_of_report(self, report: Report, scenario: str) -> str:
        first = report.references[0]
        shard = shard_in(first)
        if shard is not None:
            return shard
        entry = await self.ledger.find(first)
        return entry.shard if entry is not None else shard_of(scenario, first)

    async def on_command(
        self, kind: type[Command], scenario: str, traceparent: str = "", **fields: str
    ) -> News:
        """Ask the publisher for something, and wait for what comes of it.

        Raises:
            ApiError: 504 where nothing came of it in time, 503 where the command could not be sent.
        """
        command = kind(
            event_id=f"cmd-{time_ordered_hex()}",
            at=self.now(),
            scenario=scenario,
            traceparent=traceparent,
            **fields,
        )
        try:
            return await self.commands.submit(command, timeout_s=self.command_timeout_s)
        except NotDurable:
            raise command_not_sent(command.event_id) from None
        except TimeoutError:
            raise ApiError(
                504,
                f"The command {command.event_id} was sent, but the publisher did not answer within {self.command_timeout_s:.0f} s. "
                f"It will still be carried out: look at /reef/scenarios/{scenario}/releases, and at the publisher under /reef/status.",
                code="command_timeout",
            ) from None


def known_from(status: int, body: bytes) -> tuple[str, str] | None:
    """(scenario, kind) out of the experience service's answer about one receipt: `{"record": {the event}, …}`."""
    if status != 200:
        return None
    event = orjson.loads(body).get("record")
    if not isinstance(event, dict) or not isinstance(event.get("scenario"), str):
        return None
    return event["scenario"], "report" if event.get(
        "type"
    ) == "feedback.reported.v1" else "inference"


def command_of(news: Event) -> str | None:
    """The command that a release event answers."""
    return news.command_id if isinstance(news, (ReleasePublished, ReleaseRejected)) else None
