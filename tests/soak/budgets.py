"""What each series may grow by. Names are `<kind>:<process or store>`; the most specific entry
counts.
"""

from tests.soak.verdict import Budget

MB = 1.0  # memory and disk are in MB

NOTHING = Budget(0.5, why="must not grow")
MEMORY = Budget(8 * MB, why="allocator noise; a leak of one kB a request shows")

BUDGETS: dict[str, Budget] = {
    "rss_mb": MEMORY,
    "rss_mb:gateway": Budget(
        8 * MB,
        1.5 * MB,
        why="the last 50,000 to 100,000 receipts stay in memory, 300 B each, then no more",
    ),
    "rss_mb:objectstore": Budget(
        4 * MB,
        ceiling=150.0,
        why="its index holds half a kB for each object, and the merger bounds those",
    ),
    "fds:experience": Budget(
        3.0,
        ceiling=200.0,
        why="chDB keeps three files of each of its threads open once that has worked on a query",
    ),
    "fds:tansu": Budget(
        3.0,
        ceiling=96.0,
        why="two to seven connections of each service, and a pool to the store as large as its busiest moment",
    ),
    "fds:objectstore": Budget(
        3.0, ceiling=200.0, why="the other end of that pool, and one for each file of the log"
    ),
    "fds": Budget(3.0, why="connections come and go"),
    "threads": Budget(2.0, why="worker threads are made when first needed, up to a fixed number"),
    "disk_mb": Budget(2 * MB, why="a policy bounds it"),
    "disk_mb:objectstore": Budget(
        8 * MB, 60 * MB, why="the log is kept for ever: everything else can be rebuilt from it"
    ),
    "disk_mb:chdb": Budget(
        4 * MB,
        12 * MB,
        why="rows are kept as long as REEF_EXPERIENCE_KEPT_DAYS says (default: for ever)",
    ),
    "disk_mb:valkey": Budget(
        6 * MB,
        12 * MB,
        why="the append-only file is rewritten when it has doubled; releases are kept",
    ),
    "disk_mb:artifacts.git": Budget(
        2 * MB, 40 * MB, why="every content that a release names is kept"
    ),
    "disk_mb:trainer": Budget(
        6 * MB,
        6 * MB,
        why="the ledger keeps identities for its time; saved states are a fixed number",
    ),
    "disk_mb:harness": Budget(2 * MB, 3 * MB, why="the ledger keeps identities for its time"),
    "disk_mb:logs": Budget(
        8 * MB, 8 * MB, why="each log is emptied at 16 MiB, with one older part"
    ),
    "redis_keys": Budget(
        20, 400, why="works and idempotency keys expire; a release is an entry, not a key"
    ),
    "redis_mb": Budget(2 * MB, 8 * MB, why="releases with their lineage are kept"),
    "rows": Budget(
        20,
        3000,
        why="identities are kept for REEF_TRAINER_SETTLED_KEPT_S; those of receipts that clients chose for ever",
    ),
    "files": Budget(
        5,
        why="what releases, jobs and trials leave on the disk is removed ten minutes later: beyond that, nothing",
    ),
    "series": Budget(10, why="label values are routes, topics, recipes and nodes, never ids"),
    "gauge": Budget(5, why="what is under way"),
    "gauge:reef_sessions_open": Budget(30, why="closed after REEF_EXPERIENCE_SESSION_TTL_S"),
    "gauge:reef_job_samples_waiting": Budget(
        64, why="at most what a batch and the wait for a verdict leave"
    ),
    "gauge:reef_consumer_lag_events": Budget(50, why="nobody falls behind"),
}


def budget_of(name: str) -> Budget:
    """The budget of a series."""
    return BUDGETS.get(name) or BUDGETS.get(name.partition(":")[0]) or NOTHING
