"""The trainer's memory in SQLite: inbox, jobs, heads. Every method is one transaction, synced to disk before it returns."""

import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from reefcommon.errors import Unavailable
from reefcommon.events import Release, SampleReady
from reefcommon.ids import made_at_ms, record_times_ms
from reefkit.rejected_contents import Lost
from reefkit.retention import TOO_OLD
from reefkit.sqlite_file import check, is_damage, opening, reading
from services.trainer.domain import Job, Start, Verdict

_SCHEMA = """
create table if not exists records (binding text not null, record_id text not null, job_id text not null, primary key (binding, record_id));
create table if not exists samples (
  seq integer primary key autoincrement, binding text not null, sample_id text not null, state text not null,
  body blob, reason text, lag integer, refused_at text, told integer not null default 0, job_id text, newest_ms integer,
  unique (binding, sample_id)
);
create index if not exists samples_by_state on samples (binding, state, seq);
create index if not exists samples_by_job on samples (job_id);
create index if not exists records_by_job on records (job_id);
create table if not exists horizons (binding text primary key, newest_ms integer not null);
create table if not exists jobs (
  seq integer primary key autoincrement, job_id text unique not null, binding text not null, state text not null,
  candidate_id text, body text not null, dropped integer not null default 0
);
create index if not exists jobs_by_candidate on jobs (candidate_id);
create table if not exists heads (scenario text primary key, sequence integer not null, body text not null);
"""
_ADDED = (("samples", "newest_ms", "integer"), ("jobs", "dropped", "integer not null default 0"))
_SETTLED = """
select job_id from jobs where binding = :binding and job_id not in (select value from json_each(:kept))
  and seq < (select max(seq) from jobs where binding = :binding and state = 'complete')
  and (state = 'failed' or state = 'complete' and (
    not json_extract(body, '$.proposes') or json_extract(body, '$.verdict') = 'published'
    or json_extract(body, '$.verdict') = 'rejected' and dropped))
  and not exists (select 1 from samples where samples.job_id = jobs.job_id
    and (newest_ms >= :before or state not in ('trained', 'refused') or state = 'refused' and not told))
"""
"""Jobs whose end is known to everybody, none of whose samples is younger than `before`, as far as that is known."""


class SqliteLedger:
    """Inbox, Jobs and Heads on one file. Safe to call from several threads; calls follow each other. Raises BadConfig where the file is
    damaged at the start, Unavailable where that is found later."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        with opening(path):
            self._open(path)

    def _open(self, path: Path) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        for setting in ("journal_mode = wal", "synchronous = full", "busy_timeout = 5000"):
            self._db.execute(f"pragma {setting}")
        self._db.executescript(_SCHEMA)
        for (
            table,
            column,
            kind,
        ) in _ADDED:  # files of earlier versions: what is there has no age, and is kept
            if column not in {row[1] for row in self._db.execute(f"pragma table_info({table})")}:
                self._db.execute(f"alter table {table} add column {column} {kind}")
        check(self._db)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # ------------------------------------------------------------------ inbox

    def put(self, binding: str, sample: SampleReady) -> bool:
        """Keep a sample; False where it was there already. One as old as what was forgotten is kept as refused: it may have been used."""
        oldest_ms, newest_ms = record_times_ms(sample.record_ids)
        with self._transaction() as db:
            horizon = db.execute(
                "select newest_ms from horizons where binding = ?", (binding,)
            ).fetchone()
            too_old = horizon is not None and oldest_ms is not None and oldest_ms <= horizon[0]
            end = (
                ("refused", TOO_OLD, sample.at.isoformat()) if too_old else ("waiting", None, None)
            )
            row = (binding, sample.event_id, *end, sample.model_dump_json().encode(), newest_ms)
            columns = "binding, sample_id, state, reason, refused_at, body, newest_ms"
            query = f"insert or ignore into samples ({columns}) values (?, ?, ?, ?, ?, ?, ?)"
            return db.execute(query, row).rowcount > 0

    def waiting(self, binding: str) -> list[SampleReady]:
        """What waits, oldest first."""
        rows = self._rows(
            "select body from samples where binding = ? and state = 'waiting' order by seq", binding
        )
        return [SampleReady.model_validate_json(body) for (body,) in rows]

    def trained(self, binding: str, record_ids: Collection[str]) -> set[str]:
        """Which of these records are part of a job."""
        wanted = orjson.dumps(list(record_ids)).decode()
        query = "select record_id from records where binding = ? and record_id in (select value from json_each(?))"
        return {record for (record,) in self._rows(query, binding, wanted)}

    def refuse(
        self, binding: str, refusals: Sequence[tuple[str, str, int | None]], now: datetime
    ) -> None:
        """Settle samples: (sample id, reason, lag). A repeat has no further effect."""
        with self._transaction() as db:
            db.executemany(
                "update samples set state = 'refused', reason = ?, lag = ?, refused_at = ?"
                " where binding = ? and sample_id = ? and state = 'waiting'",
                [
                    (reason, lag, now.isoformat(), binding, sample_id)
                    for sample_id, reason, lag in refusals
                ],
            )

    def untold(self, binding: str) -> list[tuple[SampleReady, str, int | None, datetime]]:
        """Refusals that the broker has not acknowledged yet."""
        query = "select body, reason, lag, refused_at from samples where binding = ? and state = 'refused' and told = 0 order by seq"
        return [
            (SampleReady.model_validate_json(body), reason, lag, datetime.fromisoformat(at))
            for body, reason, lag, at in self._rows(query, binding)
        ]

    def told(self, binding: str, sample_ids: Collection[str]) -> None:
        """The broker has these refusals: only their identity is kept."""
        with self._transaction() as db:
            rows = [(binding, sample_id) for sample_id in sample_ids]
            db.executemany(
                "update samples set told = 1, body = null where binding = ? and sample_id = ?", rows
            )

    # ------------------------------------------------------------------ jobs

    def open(self, job: Job, batch: Sequence[SampleReady]) -> None:
        """In one transaction: the job, and its samples and records taken by it. A repeat has no further effect."""
        with self._transaction() as db:
            values = (job.job_id, job.binding, job.state, job.candidate_id, _dump(job))
            if not db.execute(
                "insert or ignore into jobs (job_id, binding, state, candidate_id, body) values (?, ?, ?, ?, ?)",
                values,
            ).rowcount:
                return
            taken = [(job.job_id, job.binding, sample.event_id) for sample in batch]
            db.executemany(
                "update samples set state = 'taken', job_id = ? where binding = ? and sample_id = ?",
                taken,
            )
            records = [
                (job.binding, record, job.job_id)
                for sample in batch
                for record in sample.record_ids
            ]
            db.executemany(
                "insert into records (binding, record_id, job_id) values (?, ?, ?)", records
            )

    def save(self, job: Job) -> None:
        """The job as it is now. COMPLETE settles its samples, FAILED refuses them with its reason."""
        with self._transaction() as db:
            self._write(db, job)
            if job.state == "complete":
                db.execute(
                    "update samples set state = 'trained', body = null where job_id = ?",
                    (job.job_id,),
                )
            elif job.state == "failed" and job.finished_at is not None:
                refused = (job.reason, job.finished_at.isoformat(), job.job_id)
                db.execute(
                    "update samples set state = 'refused', reason = ?, refused_at = ? where job_id = ? and state = 'taken'",
                    refused,
                )

    def reopen(self, job: Job) -> None:
        """In one transaction: forget a job that never ran, its samples wait again."""
        with self._transaction() as db:
            db.execute(
                "update samples set state = 'waiting', job_id = null where job_id = ?",
                (job.job_id,),
            )
            db.execute("delete from records where job_id = ?", (job.job_id,))
            db.execute("delete from jobs where job_id = ?", (job.job_id,))

    def unfinished(self, binding: str) -> Job | None:
        """The job that is RUNNING or at its CHECKPOINT."""
        return self._job(
            "select body from jobs where binding = ? and state in ('running', 'checkpoint') order by seq limit 1",
            binding,
        )

    def last(self, binding: str) -> Job | None:
        """The last COMPLETE job."""
        return self._job(
            "select body from jobs where binding = ? and state = 'complete' order by seq desc limit 1",
            binding,
        )

    def named(self, job_ids: Collection[str]) -> list[Job]:
        """These jobs, oldest first."""
        query = (
            "select body from jobs where job_id in (select value from json_each(?)) order by seq"
        )
        return [_load(body) for (body,) in self._rows(query, orjson.dumps(list(job_ids)).decode())]

    def batch(self, job: Job) -> list[SampleReady]:
        """The samples of an unfinished job, in its order."""
        found = dict(self._rows("select sample_id, body from samples where job_id = ?", job.job_id))
        return [SampleReady.model_validate_json(found[sample_id]) for sample_id in job.sample_ids]

    def judge(self, candidate_id: str, verdict: Verdict) -> None:
        """Keep the verdict on a candidate; unknown candidates are those of others."""
        with self._transaction() as db:
            row = db.execute(
                "select body from jobs where candidate_id = ?", (candidate_id,)
            ).fetchone()
            if row is not None:
                self._write(db, _load(row[0], verdict=verdict))

    # ------------------------------------------------------------------ heads

    def advance(self, release: Release) -> None:
        """Keep a release where it is newer than what is kept."""
        with self._transaction() as db:
            db.execute(
                "insert into heads values (?, ?, ?) on conflict (scenario) do update set sequence = excluded.sequence, body = excluded.body"
                " where excluded.sequence >= sequence",
                (release.scenario, release.sequence, release.model_dump_json()),
            )

    def head(self, scenario: str) -> Release | None:
        """The newest release that is known."""
        rows = self._rows("select body from heads where scenario = ?", scenario)
        return Release.model_validate_json(rows[0][0]) if rows else None

    # ------------------------------------------------------------------ retention

    def forget(self, binding: str, before_ms: int, kept: Collection[str]) -> dict[str, int]:
        """Remove settled samples and jobs all of whose records were made before `before_ms`. Jobs in `kept`, the last one, those without
        a verdict, and the identities of samples and records of unknown age stay. Samples with a record as old as the newest removed are
        refused from then on, so that forgetting never makes anything train twice. Returns how many of each are gone."""
        with self._transaction() as db:
            values = {
                "binding": binding,
                "before": before_ms,
                "kept": orjson.dumps(list(kept)).decode(),
            }
            jobs = orjson.dumps([job for (job,) in db.execute(_SETTLED, values)]).decode()
            values |= {"jobs": jobs}
            of_jobs = "job_id in (select value from json_each(:jobs))"
            old = f"newest_ms < :before and ({of_jobs} or binding = :binding and job_id is null and state = 'refused' and told)"
            found = db.execute(f"select record_id from records where {of_jobs}", values).fetchall()
            ages = {
                record: made
                for (record,) in found
                if (made := made_at_ms(record)) is not None and made < before_ms
            }
            newest = db.execute(
                f"select max(newest_ms) from samples where {old}", values
            ).fetchone()[0]
            if (
                horizon := max(
                    [*ages.values(), *([newest] if newest is not None else [])], default=None
                )
            ) is not None:
                query = "insert into horizons values (?, ?) on conflict (binding) do update set newest_ms = max(newest_ms, excluded.newest_ms)"
                db.execute(query, (binding, horizon))
            samples = db.execute(f"delete from samples where {old}", values).rowcount
            db.executemany(
                "delete from records where binding = ? and record_id = ?",
                [(binding, record) for record in ages],
            )
            return {
                "samples": samples,
                "jobs": db.execute(f"delete from jobs where {of_jobs}", values).rowcount,
            }

    def lost(self, scenario: str) -> list[Lost]:
        """Jobs whose candidate was rejected and whose content is still in the artifact store, oldest first."""
        query = (
            "select body from jobs where json_extract(body, '$.scenario') = ? and state = 'complete' and not dropped"
            " and json_extract(body, '$.verdict') = 'rejected' order by seq"
        )
        jobs = [_load(body) for (body,) in self._rows(query, scenario)]
        return [
            Lost(job.job_id, job.content_id, job.finished_at)
            for job in jobs
            if job.content_id and job.finished_at
        ]

    def contents_in_use(self, scenario: str) -> set[str]:
        """Contents of jobs of this scenario that were not rejected."""
        query = (
            "select json_extract(body, '$.content_id') from jobs where json_extract(body, '$.scenario') = ?"
            " and coalesce(json_extract(body, '$.verdict'), '') <> 'rejected'"
        )
        return {content for (content,) in self._rows(query, scenario) if content}

    def drop(self, job_ids: Collection[str]) -> None:
        """The contents of these jobs are gone from the artifact store."""
        with self._transaction() as db:
            db.executemany(
                "update jobs set dropped = 1 where job_id = ?", [(job_id,) for job_id in job_ids]
            )

    # ------------------------------------------------------------------ what is shown

    def counts(self, binding: str) -> dict[str, int]:
        """Samples by state."""
        return dict(
            self._rows(
                "select state, count(*) from samples where binding = ? group by state", binding
            )
        )

    def refusals(self, binding: str) -> dict[str, int]:
        """Refused samples by reason."""
        return dict(
            self._rows(
                "select reason, count(*) from samples where binding = ? and state = 'refused' group by reason",
                binding,
            )
        )

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._lock, reading(self._path):
            return self._db.execute(query, values).fetchall()

    def _job(self, query: str, *values: object) -> Job | None:
        rows = self._rows(query, *values)
        return _load(rows[0][0]) if rows else None

    @staticmethod
    def _write(db: sqlite3.Connection, job: Job) -> None:
        db.execute(
            "update jobs set state = ?, candidate_id = ?, body = ? where job_id = ?",
            (job.state, job.candidate_id, _dump(job), job.job_id),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, reading(self._path):
            try:
                self._db.execute("begin immediate")
                yield self._db
                self._db.execute("commit")
            except sqlite3.OperationalError as error:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                if is_damage(error):
                    raise
                raise Unavailable(
                    f"the trainer's ledger cannot be written: {error}; is the disk full?"
                ) from error
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise


def _dump(job: Job) -> str:
    return orjson.dumps(asdict(job)).decode()


def _load(body: str, **changes: Any) -> Job:
    row = orjson.loads(body) | changes
    for name in ("opened_at", "finished_at"):
        row[name] = datetime.fromisoformat(row[name]) if row[name] else None
    return Job(**(row | {"start": Start(**row["start"]), "sample_ids": tuple(row["sample_ids"])}))
