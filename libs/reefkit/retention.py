"""The count and the log of everything that retention removes."""

from collections.abc import Mapping

import structlog
from prometheus_client import Counter

log = structlog.get_logger()

TOO_OLD = "too_old"
"""The reason to refuse a sample with a record as old as those that a job store has forgotten."""

REMOVED = Counter(
    "reef_retention_removed_total",
    "things removed because their time was over, by kind",
    ["service", "what"],
)


def record_removed(service: str, counts: Mapping[str, int]) -> None:
    """Count the removals of a round by kind; log them if any."""
    gone = {kind: count for kind, count in counts.items() if count}
    for kind, count in gone.items():
        REMOVED.labels(service, kind).inc(count)
    if gone:
        log.info("retention_removed", **gone)
