"""Reports, and releases that became the head.

request --intake--> exchange --inference--> engine, record, answer     (exchange/, the hot path)
report  --on_report--> FeedbackReported, acknowledged, then 202
release --on_release--> table of heads
"""

import asyncio
from dataclasses import dataclass

import orjson
import structlog

from reefcommon import topics
from reefcommon.errors import Unavailable
from reefcommon.events import FeedbackReported, ReleasePublished, utc_now
from reefcommon.ids import new_report_id, shard_in, shard_of
from services.gateway.domain.errors import ApiError, no_room, not_durable
from services.gateway.domain.heads import HeadTable
from services.gateway.domain.keys import KeyEntry
from services.gateway.domain.log_event import log_event
from services.gateway.domain.recent import Recent
from services.gateway.domain.remembered import entry_of
from services.gateway.domain.report import Report, check_known, not_a_receipt
from services.gateway.ports import FindRecorded, KeyStore, NotDurable, Reads, RecordLog

log = structlog.get_logger()


@dataclass(frozen=True)
class Handlers:
    """The gateway's arrivals besides inference."""

    log: RecordLog
    table: HeadTable
    key_store: KeyStore
    find_recorded: FindRecorded
    reads: Reads
    recent: Recent

    def on_release(self, news: ReleasePublished) -> None:
        """Route the next requests to a release that became the head."""
        shown = {"scenario", "release_id", "adapter", "operation"}
        if self.table.publish(news.release):
            log.info("release_routed", **news.release.model_dump(include=shown))
        elif self.table.release(news.release.scenario, news.release.release_id) is None:
            log.warning("release_of_another_chain", **news.release.model_dump(include=shown))

    async def on_report(self, report: Report, scenario: str, traceparent: str) -> str:
        """Keep a report; returns its id when it is durable. Raises ApiError, Unavailable."""
        if self.log.refusal() is not None:
            raise no_room()
        await self._check_references(report, scenario)
        shard = await self._shard_of_report(report, scenario)
        report_id = report.agent_record_id or new_report_id(shard)
        digest = report.digest(scenario)
        if report.agent_record_id is not None:
            entry = KeyEntry(digest, "report", scenario, shard, "done")
            before = await self._before(report_id)
            existing = before or await self.key_store.claim(report_id, entry, lease_s=0)
            if (
                existing is not None
                and existing.state in {"open", "done"}
                and (existing.kind, existing.digest) != ("report", digest)
            ):
                words = f"The id {report.agent_record_id!r} was used before with other content."
                raise ApiError(409, words, code="id_conflict", param="agent_record_id")
        event = FeedbackReported(
            event_id=report_id,
            at=utc_now(),
            scenario=scenario,
            traceparent=traceparent,
            references=report.references,
            score=report.score,
            feedback=report.feedback,
            metadata=report.metadata or {},
            content_digest=digest,
        )
        # A repeat is written again: the first may be lost, and readers know repeats by their id.
        try:
            await self.log.append(log_event(topics.FEEDBACK, event, shard))
        except NotDurable:
            raise not_durable() from None
        self.recent.add(report_id, scenario, "report")
        return report_id

    async def _before(self, key: str) -> KeyEntry | None:
        # Asked before the key is taken: an entry that is taken says that it was reported.
        entry = await self.key_store.find(key)
        if entry is not None and entry.state != "unsure":
            return entry
        found = await self.find_recorded(key, entry.ended_at if entry is not None else None)
        return None if found is None else entry_of(found)

    async def _check_references(self, report: Report, scenario: str) -> None:
        unknown = []
        for position, reference in enumerate(report.references):
            known = self.recent.get(reference)
            if known is None:
                unknown.append((position, reference))
            else:
                check_known(position, reference, known, scenario)
        found = await asyncio.gather(*(self._look_up(*each) for each in unknown))
        for (position, reference), known in zip(unknown, found, strict=True):
            if known is not None:
                check_known(position, reference, known, scenario)

    async def _look_up(self, position: int, reference: str) -> tuple[str, str] | None:
        # A receipt of Reef's own form may be that of a record on its way. A client's own is known
        # from the moment of its request.
        if shard_in(reference) is None:
            try:
                entry = await self._before(reference)
            except ApiError:  # it cannot be told now: the report waits for its record
                return None
            if entry is None:
                raise not_a_receipt(position, reference)
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
        entry = await self.key_store.find(first)
        return entry.shard if entry is not None else shard_of(scenario, first)


def known_from(status: int, body: bytes) -> tuple[str, str] | None:
    """Return (scenario, kind) of a record in an answer `{"record": event}` of experience."""
    if status != 200:
        return None
    event = orjson.loads(body).get("record")
    if not isinstance(event, dict) or not isinstance(event.get("scenario"), str):
        return None
    kind = "report" if event.get("type") == "feedback.reported.v1" else "inference"
    return event["scenario"], kind
