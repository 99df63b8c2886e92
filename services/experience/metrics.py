"""The metrics of the experience service."""

from prometheus_client import Counter, Gauge

SAMPLES = Counter(
    "reef_samples_total",
    "samples made, by why they cannot be trained on (empty: they can)",
    ["untrainable"],
)
UNITS = Counter(
    "reef_units_total",
    "turns and sessions made, by why they cannot be trained on (empty: they can)",
    ["kind", "untrainable"],
)
UNITS_REFUSED = Counter(
    "reef_units_refused_total", "turns and sessions that the store or the broker refused for good"
)
REPEATS = Counter("reef_experience_repeats_total", "events that had their effect before", ["topic"])
CONFLICTS = Counter(
    "reef_experience_conflicts_total", "events with a known id and other content", ["topic"]
)
UNRESOLVED = Counter("reef_experience_bodies_missing_total", "large bodies that could not be read")
EXPIRED = Counter("reef_reports_expired_total", "reports whose records never came")
PARKED = Gauge("reef_reports_parked", "reports that wait in memory for their records")
OPEN = Gauge("reef_sessions_open", "sessions in memory that may go on")
EVICTED = Gauge(
    "reef_sessions_evicted",
    "sessions put out of memory since the start because there were too many",
)
