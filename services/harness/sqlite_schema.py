"""The ledger's tables, and the longer of its questions."""

import sqlite3
from pathlib import Path

from reefcommon.harness.tree import MAX_REJECTED
from reefkit.sqlite_file import check
from services.harness.domain import LOST, REJECTED, UNFINISHED

_SCHEMA = """
create table if not exists samples (
    seq integer primary key, binding text not null, sample_id text not null, state text not null default 'waiting',
    job_id text, reason text, body text not null, newest_ms integer, unique (binding, sample_id));
create index if not exists samples_waiting on samples (binding, state, seq);
create index if not exists samples_by_job on samples (job_id);
create table if not exists horizons (binding text primary key, newest_ms integer not null);
create table if not exists jobs (
    seq integer primary key, job_id text not null unique, binding text not null, state text not null, candidate_id text,
    updated integer not null, body text not null, dropped integer not null default 0);
create index if not exists jobs_candidate on jobs (candidate_id);
create index if not exists jobs_state on jobs (binding, state, updated);
create table if not exists heads (scenario text primary key, sequence integer not null, body text not null);
create table if not exists outbox (
    seq integer primary key, topic text not null, type text not null, event_id text not null, body text not null,
    unique (topic, type, event_id));
create table if not exists clock (id integer primary key check (id = 1), tick integer not null);
insert or ignore into clock values (1, 0);
"""
_ADDED = (("samples", "newest_ms", "integer"), ("jobs", "dropped", "integer not null default 0"))
STATES = {
    name: ", ".join(f"'{state}'" for state in states)
    for name, states in (("unfinished", UNFINISHED), ("shown", REJECTED), ("lost", LOST))
}
ENDED = f"""
select job_id from jobs where binding = :binding and state not in ({STATES["unfinished"]})
  and seq < (select max(seq) from jobs where binding = :binding)
  and seq not in (select seq from jobs where binding = :binding and state in ({STATES["shown"]}) order by updated desc
    limit {MAX_REJECTED})
  and (dropped or state not in ({STATES["lost"]}) or json_extract(body, '$.content_id') is null)
  and not exists (select 1 from samples where samples.job_id = jobs.job_id and newest_ms >= :before)
"""
CONTENTS = """
select job_id, json_extract(body, '$.content_id') as content, json_extract(body, '$.opened_at') from jobs
where json_extract(body, '$.scenario') = ? and content is not null
"""


def opened(path: Path) -> sqlite3.Connection:
    """The file, made or brought up to date, and whole. Every commit is on the disk when it returns."""
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10.0)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.executescript(_SCHEMA)
    for (
        table,
        column,
        kind,
    ) in _ADDED:  # files of earlier versions: what is there has no age, and is kept
        if column not in {row[1] for row in db.execute(f"pragma table_info({table})")}:
            db.execute(f"alter table {table} add column {column} {kind}")
    check(db)
    return db
