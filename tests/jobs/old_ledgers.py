"""Ledgers of the two hosts before the job store, made by their own SQL (as of 2026-11)."""

import json
import sqlite3
from pathlib import Path
from typing import Any

from reefcommon.events import SampleReady

TRAINER = """
create table records (binding text not null, record_id text not null, job_id text not null, primary key (binding, record_id));
create table samples (
  seq integer primary key autoincrement, binding text not null, sample_id text not null, state text not null,
  body blob, reason text, lag integer, refused_at text, told integer not null default 0, job_id text, newest_ms integer,
  unique (binding, sample_id)
);
create index samples_by_state on samples (binding, state, seq);
create index samples_by_job on samples (job_id);
create index records_by_job on records (job_id);
create table horizons (binding text primary key, newest_ms integer not null);
create table jobs (
  seq integer primary key autoincrement, job_id text unique not null, binding text not null, state text not null,
  candidate_id text, body text not null, dropped integer not null default 0
);
create index jobs_by_candidate on jobs (candidate_id);
create table heads (scenario text primary key, sequence integer not null, body text not null);
"""
HARNESS = """
create table samples (
    seq integer primary key, binding text not null, sample_id text not null, state text not null default 'waiting',
    job_id text, reason text, body text not null, newest_ms integer, unique (binding, sample_id));
create index samples_waiting on samples (binding, state, seq);
create index samples_by_job on samples (job_id);
create table horizons (binding text primary key, newest_ms integer not null);
create table jobs (
    seq integer primary key, job_id text not null unique, binding text not null, state text not null, candidate_id text,
    updated integer not null, body text not null, dropped integer not null default 0);
create index jobs_candidate on jobs (candidate_id);
create index jobs_state on jobs (binding, state, updated);
create table heads (scenario text primary key, sequence integer not null, body text not null);
create table outbox (
    seq integer primary key, topic text not null, type text not null, event_id text not null, body text not null,
    unique (topic, type, event_id));
create table clock (id integer primary key check (id = 1), tick integer not null);
insert or ignore into clock values (1, 0);
"""
AT = "2026-01-01T00:00:00+00:00"


class OldLedger:
    """One file of the version before."""

    def __init__(self, path: Path, schema: str, binding: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.db, self.binding = sqlite3.connect(path, isolation_level=None), binding
        self.trainer = schema is TRAINER
        self.db.executescript(schema)

    def head(self, release: Any) -> None:
        row = (release.scenario, release.sequence, release.model_dump_json())
        self.db.execute("insert into heads values (?, ?, ?)", row)

    def sample(self, sample: SampleReady, state: str, job: str | None = None, **more: Any) -> None:
        body = sample.model_dump_json()
        keep = state in ("waiting", "taken") or more.pop("keep", False)
        row = {
            "binding": self.binding,
            "sample_id": sample.event_id,
            "state": state,
            "job_id": job,
            "body": (body.encode() if self.trainer else body)
            if keep
            else (None if self.trainer else ""),
        } | more
        marks = ", ".join("?" * len(row))
        self.db.execute(f"insert into samples ({', '.join(row)}) values ({marks})", [*row.values()])
        if self.trainer and job:
            for record in sample.record_ids:
                self.db.execute("insert into records values (?, ?, ?)", (self.binding, record, job))

    def job(self, job_id: str, state: str, samples: list[str], **body: Any) -> None:
        own = (
            {"start": {"state": None, "actor": None, "adopt": None}, "facts": {}, "traceparent": "",
             "metrics": {}, "proposes": False, "finished_at": None, "verdict": None, "base_content": "base"}
            if self.trainer
            else {"attempt": 1, "mutations": [], "candidate_id": None, "base_content": None}
        )  # fmt: skip
        whole = {
            "job_id": job_id, "binding": self.binding, "scenario": "default", "base_release_id": "r5",
            "sample_ids": samples, "opened_at": AT, "state": state, "step": 1, "content_id": None, "reason": "",
        } | own | body  # fmt: skip
        candidate = body.get("candidate") or whole.get("candidate_id")
        whole.pop("candidate", None)
        if self.trainer:
            row = (job_id, self.binding, state, candidate, json.dumps(whole))
            self.db.execute(
                "insert into jobs (job_id, binding, state, candidate_id, body) values (?, ?, ?, ?, ?)",
                row,
            )
        else:
            row = (job_id, self.binding, state, candidate, 1, json.dumps(whole))
            self.db.execute(
                "insert into jobs (job_id, binding, state, candidate_id, updated, body) values (?, ?, ?, ?, ?, ?)",
                row,
            )

    def close(self) -> None:
        self.db.close()
