"""Reports: joined with their records, parked while a record is missing, given up in time."""

#     new report --all records known--> sample: row, then published --> report's row: joined
#                --some missing-------> report's row: parked --too long--> dead letter, row: expired
#
# The report's row says that it is done, so it is written last. A record that comes after its report
# expired still joins it.

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from pydantic_core import from_json

from reefcommon import topics
from reefcommon.errors import Poison
from reefcommon.events import FeedbackReported, InferenceRecorded, SampleReady, utc_now
from reefkit.bodies import BodyMissing
from reefkit.bus import EventPublisher
from services.experience import ports
from services.experience.domain.parking import Parked, Parking
from services.experience.domain.samples import Record, make_samples, wrong_references
from services.experience.metrics import CONFLICTS, EXPIRED, REPEATS, SAMPLES, UNRESOLVED
from services.experience.settings import Settings

log = structlog.get_logger()

Records = Mapping[str, Record]
DeadArrivals = list[tuple[ports.Arrival, str]]
"""Events that can never be handled, each with the reason."""


@dataclass(slots=True)
class Reports:
    """The reports and the samples that they make."""

    settings: Settings
    store: ports.ExperienceStore
    publisher: EventPublisher
    dead: ports.DeadLetters
    bodies: ports.BodyStore
    now: Callable[[], datetime] = utc_now
    parking: Parking = field(init=False)

    @property
    def report_wait(self) -> timedelta:
        return timedelta(seconds=self.settings.report_wait_s)

    def waiting_facts(self) -> dict[str, Any] | None:
        """Return the report that waits longest, with the time when it is given up."""
        parked = self.parking.oldest()
        if parked is None:
            return None
        return {
            "report_id": parked.report.event_id,
            "references": parked.report.references,
            "since": parked.parked_at,
            "given_up_at": parked.parked_at + self.report_wait,
        }

    async def with_texts(self, event: InferenceRecorded) -> InferenceRecorded:
        """Put request and response of a claim check into an exchange, if they can be read."""
        if event.body_ref is None or event.request is not None:
            return event
        try:
            body = from_json(await self.bodies.read(event.body_ref))
            if not isinstance(body, dict):
                raise Poison(f"the body {event.body_ref.sha256} is not a JSON object")
        # The event is complete without its texts: a sample is made of its tokens alone.
        except (Poison, BodyMissing, ValueError) as error:
            UNRESOLVED.inc()
            log.warning("body_missing", record_id=event.event_id, reason=str(error))
            return event
        texts = {name: body.get(name) for name in ("request", "response")}
        return event.model_copy(update=texts)

    async def new_reports(
        self, arrivals: Sequence[tuple[ports.Arrival, FeedbackReported]], dead: DeadArrivals
    ) -> dict[str, Parked]:
        """Return the reports without an effect so far; add the impossible reports to `dead`."""
        states = await self.store.report_states([report.event_id for _, report in arrivals])
        reports: dict[str, Parked] = {}
        for arrival, report in arrivals:
            known, twin = states.get(report.event_id), reports.get(report.event_id)
            digest = known.digest if known is not None else report.content_digest
            if twin is not None:
                digest = twin.report.content_digest
            if (wrong := wrong_references(report.references)) is not None:
                dead.append((arrival, wrong))
            elif digest != report.content_digest:
                CONFLICTS.labels(arrival.topic).inc()
                other = f"conflict: report {report.event_id} is known with other content"
                dead.append((arrival, other))
            elif twin is not None or (known is not None and known.state == "joined"):
                REPEATS.labels(arrival.topic).inc()
            else:
                # Its first place in the log stays its place, so that a repeat leaves no trace.
                place = known or arrival
                # An expired report that is sent again waits anew.
                since = known.parked_at if known and known.state == "parked" else self.now()
                at = place.partition, place.offset
                reports[report.event_id] = Parked(report, since, *at, arrival.key)
        return reports

    async def join(self, reports: Sequence[Parked], records: Records) -> list[Parked]:
        """Make samples of the reports whose records are all known; park and return the others.

        A report whose sample is refused by the store or by the broker is dead, it alone.
        """
        try:
            return await self._join(reports, records)
        except Poison as error:
            if len(reports) > 1:
                return [left for one in reports for left in await self.join([one], records)]
            await self.dead.bury(_as_arrival(reports[0]), str(error))
            await self._mark([self._row(reports[0], "refused")])
            return []

    async def _join(self, reports: Sequence[Parked], records: Records) -> list[Parked]:
        references = {each for parked in reports for each in parked.report.references}
        needed = references - records.keys()
        found = {**records, **(await self.store.records(needed) if needed else {})}
        samples: list[SampleReady] = []
        rows: list[ports.ReportRow] = []
        for parked in reports:
            report = parked.report
            # A record of another scenario counts as unknown: the reporter must not learn of it.
            there = [found[reference] for reference in report.references if reference in found]
            known = [record for record in there if record.event.scenario == report.scenario]
            if len(known) < len(report.references):
                rows.append(self._row(parked, "parked"))
                continue
            whole = [Record(await self.with_texts(r.event), r.digest, r.place) for r in known]
            made = make_samples(report, whole)
            samples += made
            rows.append(self._row(parked, "joined", made[0].event_id))
        await self._publish(samples)
        await self._mark(rows)
        return [row.parked for row in rows if row.state == "parked"]

    async def _publish(self, samples: Sequence[SampleReady]) -> None:
        if samples:
            # The row first: a recipe may ask for a sample as soon as it has it.
            await self.store.insert_samples(samples)
            publish = self.publisher.publish
            await asyncio.gather(*(publish(sample, topics.SAMPLES) for sample in samples))
        for sample in samples:
            SAMPLES.labels(sample.untrainable or "").inc()

    async def _mark(self, rows: Sequence[ports.ReportRow]) -> None:
        waiting = [row for row in rows if row.state == "parked"]
        ended = [row for row in rows if row.state != "parked"]
        # A report that waits already has its row.
        new = [row for row in waiting if row.parked.report.event_id not in self.parking]
        await self.store.insert_reports(new + ended)
        for row in waiting:
            self.parking.add(row.parked)
        for row in ended:
            self.parking.discard(row.parked.report.event_id)

    async def expire(self, reports: Iterable[Parked]) -> None:
        """Give up reports whose records did not come in time. Raises Unavailable."""
        for parked in reports:
            references = parked.report.references
            found = await self.store.records(references)
            own = {n for n, r in found.items() if r.event.scenario == parked.report.scenario}
            missing = [name for name in references if name not in own]
            waited_s = self.report_wait.total_seconds()
            reason = f"unknown receipts after {waited_s:g} s: {', '.join(missing)}"
            # Before its row, after which the report is not looked at again.
            await self.dead.bury(_as_arrival(parked), reason, waited=True)
            await self._mark([self._row(parked, "expired")])
            self.parking.expired = True
            EXPIRED.inc()

    async def bury(self, dead: DeadArrivals) -> None:
        """Write events to the dead letters. Raises Unavailable."""
        for arrival, reason in dead:
            await self.dead.bury(arrival, reason)

    def _row(
        self, parked: Parked, state: ports.ReportState, sample_id: str | None = None
    ) -> ports.ReportRow:
        # Microseconds: two states of a report never share a version.
        version = int(self.now().timestamp() * 1_000_000)
        return ports.ReportRow(parked, state, sample_id, version)


def _as_arrival(parked: Parked) -> ports.Arrival:
    value = parked.report.model_dump_json(exclude_none=True).encode()
    place = topics.FEEDBACK.name, parked.partition, parked.offset
    return ports.Arrival(*place, parked.key, value, parked.report)
