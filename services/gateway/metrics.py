"""The gateway's metrics.

Children are kept for each label set: `labels()` costs more than the increment.
"""

from functools import lru_cache

from prometheus_client import Counter, Gauge, Histogram

_LONG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHORT = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)


REQUESTS = Counter(
    "reef_gateway_requests_total",
    "requests answered; a stream that an error ended counts as 502",
    ["route", "status"],
)
RECORDS = Counter(
    "reef_gateway_records_total", "exchanges recorded, by how they ended", ["outcome"]
)
UNRECORDED = Counter(
    "reef_gateway_unrecorded_total", "exchanges without a durable record: no receipt holds"
)
REPORTS = Counter("reef_gateway_reports_total", "reports accepted")
IN_FLIGHT = Gauge("reef_gateway_in_flight", "exchanges with the model under way")
BODY_BYTES = Gauge("reef_gateway_in_flight_body_bytes", "memory of request bodies and their copies")
LATENCY = Histogram(
    "reef_gateway_request_seconds",
    "from a request's first byte to its answer's last",
    ["route"],
    buckets=_LONG,
)
ADDED = Histogram(
    "reef_gateway_added_seconds",
    "time outside of the upstream call, for unary exchanges",
    buckets=_SHORT,
)
ACK = Histogram(
    "reef_gateway_ack_seconds",
    "from handing an event to the log to its acknowledgement",
    buckets=_SHORT,
)
FIRST_TOKEN = Histogram(
    "reef_gateway_first_token_seconds",
    "from the request to the first streamed chunk",
    buckets=_LONG,
)
REPEATS = Counter(
    "reef_gateway_repeats_total", "requests answered from an earlier one with the same key"
)
LIMITED = Counter("reef_gateway_rate_limited_total", "requests refused with 429", ["limit"])
LIMITS_LOCAL = Gauge(
    "reef_gateway_rate_limits_local", "1 while Redis is away and requests are counted here"
)
ENGINE_ERRORS = Counter(
    "reef_gateway_engine_errors_total", "failed calls to a serving node", ["engine", "kind"]
)

SPOOL_RECORDS = Gauge(
    "reef_gateway_spool_records", "events on this gateway's disk that wait for the broker"
)
SPOOL_BYTES = Gauge("reef_gateway_spool_bytes", "disk that the spool uses")
SPOOL_AGE = Gauge("reef_gateway_spool_oldest_seconds", "age of the oldest event in the spool")
SPOOL_APPENDED = Counter("reef_gateway_spool_appended_total", "events put on this gateway's disk")
SPOOL_RELAYED = Counter(
    "reef_gateway_spool_relayed_total", "events of the disk that the broker acknowledged"
)
SPOOL_DAMAGED = Counter("reef_gateway_spool_damaged_total", "damaged spool files that were found")
SPOOL_QUARANTINED = Counter(
    "reef_gateway_spool_quarantined_total", "damaged spool files that were put in quarantine"
)
SPOOL_SYNC = Histogram(
    "reef_gateway_spool_sync_seconds",
    "a sync of the spool, shared by all waiting events",
    buckets=_SHORT,
)


@lru_cache(maxsize=1024)
def requests(route: str, status: int) -> Counter:
    return REQUESTS.labels(route, str(status))


@lru_cache(maxsize=64)
def latency(route: str) -> Histogram:
    return LATENCY.labels(route)


@lru_cache(maxsize=16)
def records(outcome: str) -> Counter:
    return RECORDS.labels(outcome)
