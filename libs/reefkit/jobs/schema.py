"""The tables of the job store, and the migrations from its earlier forms."""

import sqlite3
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson
from pydantic import TypeAdapter

from reefcommon import topics
from reefcommon.errors import BadConfig
from reefcommon.events import AnyUnit, Event, SampleReady, Signal
from reefcommon.ids import candidate_id
from reefcommon.topics import Topic
from reefkit.jobs.model import Job, State
from reefkit.recipe_binding import refusal_event

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
_OLD_TABLES = ("records", "samples", "horizons", "jobs", "heads", "outbox", "clock")
_JOB = TypeAdapter(Job)
_UNIT: TypeAdapter[AnyUnit] = TypeAdapter(AnyUnit)
_KEPT = (
    *("job_id", "binding", "scenario", "base_release_id", "sample_ids", "opened_at", "step"),
    *("content_id", "reason"),
)
_TRAINER: dict[str, State] = {"running": "open", "checkpoint": "produced", "failed": "aborted"}
_HARNESS: dict[str, State] = {
    "proposed": "produced",
    "awaiting": "announced",
    "selected": "published",
    "empty": "finished",
    "failed": "aborted",
    "superseded": "aborted",
}


def create(db: sqlite3.Connection, recipes: Mapping[str, str]) -> None:
    """Make the tables, or migrate an older ledger, in a single transaction.

    `recipes`: names of the bound recipes by binding, for unsent refusals. Raises BadConfig.
    """
    version = db.execute("pragma user_version").fetchone()[0]
    if version > VERSION:
        path = db.execute("pragma database_list").fetchone()[2]
        remedy = "install it again, or start on another state directory"
        raise BadConfig(f"{path} is of a newer Reef (version {version}, not {VERSION}): {remedy}")
    if version == VERSION:
        return
    db.execute("begin immediate")
    try:
        if version < 2:
            _from_ledgers(db, recipes)
        if version < 3:
            _make(db, _RECIPE_TABLES)
        _make(db, _PROPOSAL_TABLES)
        db.execute(f"pragma user_version = {VERSION}")
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def _from_ledgers(db: sqlite3.Connection, recipes: Mapping[str, str]) -> None:
    tables = db.execute("select name from sqlite_master where type = 'table'").fetchall()
    found = [name for name in _OLD_TABLES if (name,) in tables]
    for name in found:
        # An index keeps its name when its table is renamed, and the new table needs the name.
        indices = "select name from sqlite_master where type = 'index' and sql is not null"
        for (index,) in db.execute(f"{indices} and tbl_name = ?", (name,)).fetchall():
            db.execute(f"drop index {index}")
        db.execute(f"alter table {name} rename to old_{name}")
    _make(db, _TABLES)
    if "jobs" in found:
        _take_over(db, found, recipes)
    for name in found:
        db.execute(f"drop table old_{name}")


def _make(db: sqlite3.Connection, tables: str) -> None:
    for statement in filter(str.strip, tables.split(";\n")):
        db.execute(statement)


def insert_job(db: sqlite3.Connection, job: Job, *, dropped: bool = False) -> bool:
    values = (job.job_id, job.binding, job.scenario, job.state, job.candidate_id, job.content_id)
    query = (
        "insert or ignore into jobs (job_id, binding, scenario, state, candidate_id, content_id,"
        f" updated, dropped, body) values (?, ?, ?, ?, ?, ?, {NEXT}, ?, ?)"
    )
    return db.execute(query, (*values, dropped, dump(job))).rowcount > 0


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


# ------------------------------------------------------------------ the two ledgers before


def _take_over(db: sqlite3.Connection, found: list[str], recipes: Mapping[str, str]) -> None:
    columns = {name: _columns(db, f"old_{name}") for name in found}
    # Only the trainer's ledger said which refusals were sent; the harness had an outbox.
    trainer = "told" in columns["samples"]
    dropped = "dropped" if "dropped" in columns["jobs"] else "0"
    query = f"select body, state, {dropped} from old_jobs order by seq"
    for body, state, gone in db.execute(query).fetchall():
        old = orjson.loads(body)
        name = recipes.get(old["binding"], "")
        job = _from_trainer(old, state, name) if trainer else _from_harness(old, state)
        insert_job(db, job, dropped=bool(gone))
    newest = "newest_ms" if "newest_ms" in columns["samples"] else "null"
    settled = "'trained'" if trainer else "'used'"
    db.execute(
        "insert into samples (seq, binding, sample_id, state, body, reason, job_id, newest_ms)"
        f" select seq, binding, sample_id, case when state <> {settled} then state"
        " when exists (select 1 from jobs where jobs.job_id = old_samples.job_id"
        " and state in ('open', 'produced')) then 'taken' else 'used' end,"
        f" nullif(body, ''), reason, job_id, {newest} from old_samples"
    )
    for name in ("records", "horizons", "heads", "outbox"):
        if name in found:
            db.execute(f"insert into {name} select * from old_{name}")
    if trainer:
        _send_refusals(db, recipes)
    db.execute("update samples set body = null where state not in ('waiting', 'taken')")


def _send_refusals(db: sqlite3.Connection, recipes: Mapping[str, str]) -> None:
    query = (
        "select binding, body, reason, lag, refused_at from old_samples"
        " where state = 'refused' and told = 0 and body is not null order by seq"
    )
    for key, body, reason, lag, at in db.execute(query).fetchall():
        if key in recipes:  # the recipe of a binding that is gone has no name to refuse under
            sample = SampleReady.model_validate_json(body)
            refused_at = datetime.fromisoformat(at)
            event = refusal_event(key, recipes[key], (sample, reason, lag), refused_at)
            put_event(db, event, topics.TRAINING)


def _from_trainer(old: dict[str, Any], state: str, recipe: str) -> Job:
    if state == "complete":
        now: State = (old["verdict"] or "announced") if old["proposes"] else "finished"
    else:
        # A checkpoint is stored again under the same digest: its events may not have been sent.
        now = _TRAINER[state]
    no_candidate = "the recipe proposes no candidate after this step"
    return _job(
        old,
        "traceparent",
        "metrics",
        "proposes",
        "finished_at",
        state=now,
        plan={"start": old["start"], "facts": old["facts"]},
        candidate_id=candidate_id(old["job_id"]) if old["proposes"] else None,
        summary=f"{recipe} step {old['step']}" if old["proposes"] else no_candidate,
    )


def _from_harness(old: dict[str, Any], state: str) -> Job:
    began = state in ("open", "proposed")
    own = candidate_id(old["job_id"]) if state == "proposed" else None
    return _job(
        old,
        "attempt",
        state=_HARNESS.get(state, state),
        output={"mutations": old["mutations"]},
        proposes=bool(old["mutations"]),
        candidate_id=old["candidate_id"] or own,
        finished_at=None if began else old["opened_at"],
        summary="; ".join(item["reason"] for item in old["mutations"] if item["reason"]),
    )


def _job(old: dict[str, Any], *kept: str, **changes: object) -> Job:
    fields = {name: old[name] for name in (*_KEPT, *kept)}
    base = {"base_load": "", "base_content": old["base_content"] or ""}
    return _JOB.validate_python(fields | base | changes)


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f"pragma table_info({table})")}
