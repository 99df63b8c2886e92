"""A job store of version 2, made by its own SQL (as of 2026-12-01)."""

import sqlite3

from reefcommon.events import SampleRefused
from tests.recipes.samples import AT, sample
from tests.trainer.rig import release

TABLES = """
create table records (
  binding text not null, record_id text not null, job_id text not null,
  primary key (binding, record_id));
create index records_by_job on records (job_id);
create table samples (
  seq integer primary key autoincrement, binding text not null, sample_id text not null,
  state text not null, body blob, reason text, job_id text, newest_ms integer,
  unique (binding, sample_id));
create index samples_by_state on samples (binding, state, seq);
create index samples_by_job on samples (job_id);
create table horizons (binding text primary key, newest_ms integer not null);
create table jobs (
  seq integer primary key autoincrement, job_id text not null unique, binding text not null,
  scenario text not null, state text not null, candidate_id text, content_id text,
  updated integer not null, dropped integer not null default 0, body text not null);
create index jobs_by_state on jobs (binding, state, updated);
create index jobs_by_candidate on jobs (candidate_id);
create index jobs_by_update on jobs (updated);
create table heads (scenario text primary key, sequence integer not null, body text not null);
create table outbox (
  seq integer primary key autoincrement, topic text not null, type text not null,
  event_id text not null, body text not null, unique (topic, type, event_id));
create table fence (id integer primary key check (id = 1), token integer not null);
insert into fence values (1, 4);
pragma user_version = 2;
"""


def version_two(path, binding):
    """One sample waits, one was used, and an event waits to be sent."""
    db = sqlite3.connect(path)
    db.executescript(TABLES)
    query = "insert into samples (binding, sample_id, state, body) values (?, ?, ?, ?)"
    db.execute(query, (binding, "smp-0", "used", None))
    body = sample(1).model_dump_json().encode()
    db.execute(query, (binding, "smp-1", "waiting", body))
    head = release(5)
    db.execute("insert into heads values ('default', 5, ?)", (head.model_dump_json(),))
    event = SampleRefused(
        event_id="ref-1", at=AT, scenario="default", recipe="r", sample_id="smp-9", reason="stale"
    )
    row = ("reef.training.v1", "SampleRefused", "ref-1", event.model_dump_json())
    db.execute("insert into outbox (topic, type, event_id, body) values (?, ?, ?, ?)", row)
    db.commit()
    db.close()
