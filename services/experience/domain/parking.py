"""Reports that wait for their records."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from reefcommon.events import FeedbackReported


@dataclass(frozen=True, slots=True)
class Parked:
    """A report with its place in the log. It began to wait at a time of this machine."""

    report: FeedbackReported
    parked_at: datetime
    partition: int
    offset: int
    key: bytes | None


class Parking:
    """Waiting reports by their references. Reports over `limit` are in the store alone."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._reports: OrderedDict[str, Parked] = OrderedDict()
        self._by_reference: dict[str, set[str]] = {}
        # Whether the store may have expired reports, which a late record still joins.
        self.expired = True

    def oldest(self) -> Parked | None:
        return min(self._reports.values(), key=lambda parked: parked.parked_at, default=None)

    def __len__(self) -> int:
        return len(self._reports)

    def __contains__(self, report_id: object) -> bool:
        return report_id in self._reports

    def add(self, parked: Parked) -> None:
        """Remember a report; drop the oldest if there are too many."""
        report = parked.report
        self.discard(report.event_id)
        self._reports[report.event_id] = parked
        for reference in report.references:
            self._by_reference.setdefault(reference, set()).add(report.event_id)
        if len(self._reports) > self._limit:
            self.discard(next(iter(self._reports)))

    def discard(self, report_id: str) -> None:
        parked = self._reports.pop(report_id, None)
        for reference in parked.report.references if parked is not None else ():
            waiting = self._by_reference[reference]
            waiting.discard(report_id)
            if not waiting:
                del self._by_reference[reference]

    def waiting_for(self, record_ids: Iterable[str]) -> list[Parked]:
        found = (self._by_reference.get(record_id, ()) for record_id in record_ids)
        return [self._reports[report_id] for report_id in sorted({*chain.from_iterable(found)})]
