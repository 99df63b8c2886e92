"""What is removed because a policy says so: each removal is counted, and told once a round."""

from collections.abc import Mapping

import structlog
from prometheus_client import Counter

log = structlog.get_logger()

REMOVED = Counter("reef_retention_removed_total", "things removed because their time was over, by what they were", ["service", "what"])


def tell_removed(service: str, counts: Mapping[str, int]) -> None:
    """Count what one round has removed, by kind, and log it where it was anything at all."""
    gone = {what: count for what, count in counts.items() if count}
    for what, count in gone.items():
        REMOVED.labels(service, what).inc(count)
    if gone:
        log.info("retention_removed", **gone)
