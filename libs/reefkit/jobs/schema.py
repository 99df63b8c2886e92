"""The tables of the job store."""

import sqlite3
from pathlib import Path

from pydantic import TypeAdapter

from reefcommon.errors import BadConfig
from reefcommon.events import AnyUnit, Event, Signal
from reefcommon.topics import Topic
from reefkit.jobs.model import Job

VERSION = 4
_TABLES = """
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
insert into fence values (1, 0);
"""
# Since version 3. `signals.body` null: the recipe abstains. `calls.body` null: in flight.
_RECIPE_TABLES = """
create table signals (
  binding text not null, unit_id text not null, signal_id text not null, at_ms integer not null,
  body text, primary key (binding, unit_id));
create table state (
  binding text not null, key text not null, version integer not null, json text, blob blob,
  primary key (binding, key));
create table calls (
  binding text not null, subject text not null, request text not null, ordinal integer not null,
  model text not null, body blob, tokens integer not null,
  primary key (binding, subject, request, ordinal));
create table budgets (
  model text primary key, calls integer not null, prompt_tokens integer not null,
  completion_tokens integer not null, cost real not null);
create table call_log (
  seq integer primary key autoincrement, at real not null, binding text not null,
  subject text not null, model text not null, purpose text not null,
  prompt_tokens integer not null, completion_tokens integer not null, seconds real not null,
  outcome text not null);
create index call_log_by_binding on call_log (binding, seq);
create table verdicts (
  seq integer primary key autoincrement, binding text not null, job_id text not null,
  state text not null, body text not null, unique (job_id, state));
create table marks (
  binding text not null, name text not null, value text not null, primary key (binding, name));
"""
# Since version 4. `body` null: settled, and forgotten.
_PROPOSAL_TABLES = """
create table proposals (
  seq integer primary key autoincrement, proposal_id text not null unique, scenario text not null,
  kind text not null, at_ms integer not null, state text not null,
  reason text not null default '', body text, job_id text, candidate_id text);
create index proposals_by_state on proposals (scenario, state, seq);
create index proposals_by_job on proposals (job_id);
"""
_JOB = TypeAdapter(Job)
_UNIT: TypeAdapter[AnyUnit] = TypeAdapter(AnyUnit)


def create(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables that a file lacks, in a single transaction.

    Raises BadConfig if the file is of before version 2.
    """
    version = db.execute("pragma user_version").fetchone()[0]
    if version >= VERSION:
        return
    if version < 2 and db.execute("select 1 from sqlite_master").fetchone():
        raise BadConfig(
            f"{path} was made by a version of Reef that is too old. Move {path}* aside, and start"
            " again: without it learning goes on from the served release, and samples of open jobs"
            " are decided anew"
        )
    db.execute("begin immediate")
    try:
        if version < 2:
            _make(db, _TABLES)
        if version < 3:
            _make(db, _RECIPE_TABLES)
        _make(db, _PROPOSAL_TABLES)
        db.execute(f"pragma user_version = {VERSION}")
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def _make(db: sqlite3.Connection, tables: str) -> None:
    for statement in filter(str.strip, tables.split(";\n")):
        db.execute(statement)


def insert_job(db: sqlite3.Connection, job: Job) -> bool:
    values = (job.job_id, job.binding, job.scenario, job.state, job.candidate_id, job.content_id)
    query = (
        "insert or ignore into jobs (job_id, binding, scenario, state, candidate_id, content_id,"
        f" updated, dropped, body) values (?, ?, ?, ?, ?, ?, {NEXT}, 0, ?)"
    )
    return db.execute(query, (*values, dump(job))).rowcount > 0


NEXT = "(select coalesce(max(updated), 0) + 1 from jobs)"
"""Orders jobs by their last change. A wall clock can go back."""


def put_event(db: sqlite3.Connection, event: Event, topic: Topic) -> None:
    """Add an event to the outbox. A repeat has no effect. Raises ValueError if it is no event."""
    body = event.model_dump_json()
    # The outbox is read in order: an event that cannot be read would hold back those of all.
    type(event).model_validate_json(body)
    db.execute(
        "insert or ignore into outbox (topic, type, event_id, body) values (?, ?, ?, ?)",
        (topic.name, type(event).__name__, event.event_id, body),
    )


def dump(job: Job) -> str:
    """Raises ValueError if the job could not be read back: its binding would stand still."""
    body = _JOB.dump_json(job, warnings=False).decode()
    _JOB.validate_json(body)
    return body


def load(body: str) -> Job:
    return _JOB.validate_json(body)


def load_unit(body: bytes, signal: str | None = None) -> AnyUnit:
    """Return a unit, with its signal if it has one."""
    unit = _UNIT.validate_json(body)
    if signal is None:
        return unit
    return unit.model_copy(update={"signal": Signal.model_validate_json(signal)})
