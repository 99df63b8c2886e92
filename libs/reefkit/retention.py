"""What is removed because a policy says so: each removal is counted, and told once a round."""

from collections.abc import Mapping

import structlog
from prometheus_client import Counter

log = structlog.get_logger()

TOO_OLD = "too_old"
"""Why a sample is refused that has a record as old as those that a ledger has forgotten: it may have been used."""

REMOVED = Counter(
    "reef_retention_removed_total",
    "things removed because their time was over, by what they were",
    ["service", "what"],
)


def tell_removed(service: str, counts: Mapping[str, int]) -> None:
    """Count what one round has removed, by kind, and log it where it was anything at all."""
    gone = {what: count for what, count in counts.items() if count}
    for what, count in gone.items():
        REMOVED.labels(service, what).inc(count)
    if gone:
        log.info("retention_removed", **gone)
