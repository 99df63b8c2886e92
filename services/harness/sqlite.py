"""The ledger in SQLite: inbox, jobs, heads and outbox of this service. Every call is one transaction that is on the disk when it returns.

What a step does and the events that tell of it are written in one transaction; the events are sent from the outbox afterwards, so
that a crash between the two loses neither. All calls block for a few milliseconds: they are made in a worker thread.
"""

import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from reefcommon.errors import Unavailable
from reefcommon.events import Event, Release, SampleReady
from reefcommon.harness.tree import MAX_REJECTED, Mutation, Rejection
from reefcommon.ids import record_times_ms
from reefcommon.topics import Topic
from reefkit.rejected_contents import Lost
from reefkit.retention import TOO_OLD
from reefkit.sqlite_file import is_damage, opening, reading
from services.harness.domain import REJECTED, UNFINISHED, Job, State
from services.harness.sqlite_schema import CONTENTS, ENDED, STATES, opened

# Tokens, masks and log-probabilities are most of a sample's bytes, and a harness recipe reads only its text.
_WEIGHT_FIELDS = {"tokens", "loss_mask", "logprobs"}


class SqliteLedger:
    """One file, one process. The ports `Inbox`, `Jobs`, `Heads` and `Outbox` of this service. Raises BadConfig where the file is damaged
    at the start, Unavailable where that is found later."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        with opening(path):
            self._db = opened(path)

    def close(self) -> None:
        """Close the file. No call may follow."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, reading(self._path):
            try:
                self._db.execute("begin immediate")
                try:
                    yield self._db
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("rollback")
                    raise
                self._db.execute("commit")
            except sqlite3.OperationalError as error:
                if is_damage(error):
                    raise
                raise Unavailable(
                    f"the harness ledger cannot be written ({error}): is the disk full?"
                ) from error

    # ------------------------------------------------------------------ inbox

    def add_sample(
        self,
        bindings: Sequence[str],
        sample: SampleReady,
        too_old: Mapping[str, tuple[Event, Topic]] | None = None,
    ) -> int:
        """Keep a sample for every binding that has not seen it; where it is as old as what was forgotten, as refused, with its event in
        `too_old` by binding. Returns for how many it is new."""
        body, new = sample.model_dump_json(exclude=_WEIGHT_FIELDS), 0
        oldest_ms, newest_ms = record_times_ms(sample.record_ids)
        with self._transaction() as db:
            horizons = dict(db.execute("select binding, newest_ms from horizons").fetchall())
            for binding in bindings:
                refused = oldest_ms is not None and oldest_ms <= horizons.get(binding, -1)
                end = ("refused", TOO_OLD, "") if refused else ("waiting", None, body)
                query = "insert or ignore into samples (binding, sample_id, state, reason, body, newest_ms) values (?, ?, ?, ?, ?, ?)"
                inserted = db.execute(query, (binding, sample.event_id, *end, newest_ms)).rowcount
                if inserted and refused and too_old:
                    _put_events(db, [too_old[binding]])
                new += inserted
        return new

    def waiting(self, binding: str, limit: int) -> list[SampleReady]:
        """What a binding has neither used nor refused, in order of arrival."""
        with self._transaction() as db:
            rows = db.execute(
                "select body from samples where binding = ? and state = 'waiting' order by seq limit ?",
                (binding, limit),
            ).fetchall()
        return [SampleReady.model_validate_json(body) for (body,) in rows]

    def samples_of(self, job_id: str) -> list[SampleReady]:
        """The window of an unfinished job, in order of arrival."""
        with self._transaction() as db:
            rows = db.execute(
                "select body from samples where job_id = ? order by seq", (job_id,)
            ).fetchall()
        return [SampleReady.model_validate_json(body) for (body,) in rows]

    def refuse(
        self,
        binding: str,
        refusals: Sequence[tuple[str, str]],
        events: Sequence[tuple[Event, Topic]],
    ) -> None:
        """Never offer these (sample id, reason) again."""
        with self._transaction() as db:
            db.executemany(
                "update samples set state = 'refused', body = '', reason = ? where binding = ? and sample_id = ? and state = 'waiting'",
                [(reason, binding, sample_id) for sample_id, reason in refusals],
            )
            _put_events(db, events)

    # ------------------------------------------------------------------ jobs

    def current(self, binding: str) -> Job | None:
        """The unfinished job of a binding: there is at most one."""
        marks = ", ".join("?" * len(UNFINISHED))
        with self._transaction() as db:
            row = db.execute(
                f"select body from jobs where binding = ? and state in ({marks}) order by seq limit 1",
                (binding, *UNFINISHED),
            ).fetchone()
        return _job(row[0]) if row else None

    def last_step(self, binding: str) -> int:
        """The number of the newest window of a binding; 0 before the first."""
        with self._transaction() as db:
            return int(
                db.execute(
                    "select coalesce(max(json_extract(body, '$.step')), 0) from jobs where binding = ?",
                    (binding,),
                ).fetchone()[0]
            )

    def start(self, job: Job) -> None:
        """Open a job and take its samples out of the waiting ones. A repeat changes nothing."""
        with self._transaction() as db:
            _insert_job(db, job)
            db.executemany(
                "update samples set state = 'used', job_id = ? where binding = ? and sample_id = ? and state = 'waiting'",
                [(job.job_id, job.binding, sample_id) for sample_id in job.sample_ids],
            )

    def save(
        self, job: Job, *, expected: State, events: Sequence[tuple[Event, Topic]] = ()
    ) -> bool:
        """Write a job's new state and its events, if it is still in the `expected` one. False: another moved it, and nothing is written."""
        with self._transaction() as db:
            cursor = db.execute(
                "update jobs set state = ?, candidate_id = ?, body = ?, updated = ? where job_id = ? and state = ?",
                (job.state, job.candidate_id, _dump(job), _tick(db), job.job_id, expected),
            )
            if cursor.rowcount == 0:
                return False
            if job.state not in UNFINISHED:
                db.execute("update samples set body = '' where job_id = ?", (job.job_id,))
            _put_events(db, events)
            return True

    def supersede(self, old: Job, new: Job, *, expected: State) -> bool:
        """Close `old`, which lost a race, and open `new` with the same samples, in one step."""
        with self._transaction() as db:
            cursor = db.execute(
                "update jobs set state = 'superseded' where job_id = ? and state = ?",
                (old.job_id, expected),
            )
            if cursor.rowcount == 0:
                return False
            _insert_job(db, new)
            db.execute("update samples set job_id = ? where job_id = ?", (new.job_id, old.job_id))
            return True

    def of_candidate(self, candidate_id: str) -> Job | None:
        """The job that made a candidate."""
        with self._transaction() as db:
            row = db.execute(
                "select body from jobs where candidate_id = ?", (candidate_id,)
            ).fetchone()
        return _job(row[0]) if row else None

    def rejected(self, binding: str) -> list[Rejection]:
        """The last 25 proposals of a binding that came to nothing, oldest first."""
        marks = ", ".join("?" * len(REJECTED))
        with self._transaction() as db:
            rows = db.execute(
                f"select body from jobs where binding = ? and state in ({marks}) order by updated desc limit ?",
                (binding, *REJECTED, MAX_REJECTED),
            ).fetchall()
        return [
            Rejection(job.mutations, job.reason)
            for job in (_job(body) for (body,) in reversed(rows))
        ]

    # ------------------------------------------------------------------ retention

    def forget(self, binding: str, before_ms: int) -> dict[str, int]:
        """Remove ended jobs and refused samples all of whose records were made before `before_ms`. The newest job, the rejected ones that
        a recipe is shown and those whose content is still to be dropped stay, and so do the identities of samples with a record of unknown
        age. Returns how many of each are gone."""
        alone = (
            "binding = :binding and state = 'refused' and job_id is null and newest_ms < :before"
        )
        with self._transaction() as db:
            values = {"binding": binding, "before": before_ms}
            gone = [job for (job,) in db.execute(ENDED, values)]
            values["jobs"] = json.dumps(gone)
            old = (
                f"job_id in (select value from json_each(:jobs)) and newest_ms < :before or {alone}"
            )
            newest = db.execute(
                f"select max(newest_ms) from samples where {old}", values
            ).fetchone()[0]
            if newest is not None:
                query = "insert into horizons values (?, ?) on conflict (binding) do update set newest_ms = max(newest_ms, excluded.newest_ms)"
                db.execute(query, (binding, newest))
            samples = db.execute(f"delete from samples where {old}", values).rowcount
            db.executemany("delete from jobs where job_id = ?", [(job,) for job in gone])
        return {"samples": samples, "jobs": len(gone)}

    def lost(self, scenario: str) -> list[Lost]:
        """Candidates that came to nothing and whose contents were not dropped yet, oldest first."""
        query = f"{CONTENTS} and state in ({STATES['lost']}) and not dropped order by seq"
        with self._transaction() as db:
            return [
                Lost(job, content, datetime.fromisoformat(at))
                for job, content, at in db.execute(query, (scenario,))
            ]

    def contents_in_use(self, scenario: str) -> set[str]:
        """The contents of all other candidates."""
        query = f"{CONTENTS} and state not in ({STATES['lost']})"
        with self._transaction() as db:
            return {content for _, content, _ in db.execute(query, (scenario,))}

    def drop(self, job_ids: Collection[str]) -> None:
        """The contents of these jobs are gone from the artifact store."""
        with self._transaction() as db:
            db.executemany(
                "update jobs set dropped = 1 where job_id = ?", [(job_id,) for job_id in job_ids]
            )

    # ------------------------------------------------------------------ heads

    def put_head(self, release: Release) -> None:
        """Keep the newest release of a scenario; an older one, read again, changes nothing."""
        with self._transaction() as db:
            db.execute(
                "insert into heads values (?, ?, ?) on conflict (scenario) do update set sequence = excluded.sequence, body = excluded.body"
                " where excluded.sequence > heads.sequence",
                (release.scenario, release.sequence, release.model_dump_json()),
            )

    def head(self, scenario: str) -> Release | None:
        """The release that serves now, as far as this service has read the log."""
        with self._transaction() as db:
            row = db.execute("select body from heads where scenario = ?", (scenario,)).fetchone()
        return Release.model_validate_json(row[0]) if row else None

    # ------------------------------------------------------------------ outbox

    def unsent(self, limit: int) -> list[tuple[int, str, str, str]]:
        """(number, topic name, event type, JSON) of events that are not known to be at the broker, in order."""
        with self._transaction() as db:
            return db.execute(
                "select seq, topic, type, body from outbox order by seq limit ?", (limit,)
            ).fetchall()

    def sent(self, number: int) -> None:
        """The broker has acknowledged it."""
        with self._transaction() as db:
            db.execute("delete from outbox where seq = ?", (number,))

    def summary(self) -> dict[str, dict[str, int]]:
        """Samples and jobs of every binding by state, for `/status`."""
        found: dict[str, dict[str, int]] = {}
        with self._transaction() as db:
            for table in ("samples", "jobs"):
                for binding, state, count in db.execute(
                    f"select binding, state, count(*) from {table} group by 1, 2"
                ):
                    found.setdefault(binding, {})[f"{table}_{state}"] = count
        return found


def _insert_job(db: sqlite3.Connection, job: Job) -> None:
    db.execute(
        "insert or ignore into jobs (job_id, binding, state, candidate_id, updated, body) values (?, ?, ?, ?, ?, ?)",
        (job.job_id, job.binding, job.state, job.candidate_id, _tick(db), _dump(job)),
    )


def _tick(db: sqlite3.Connection) -> int:
    """Orders verdicts by their arrival; a wall clock could go back."""
    return int(db.execute("update clock set tick = tick + 1 returning tick").fetchone()[0])


def _put_events(db: sqlite3.Connection, events: Sequence[tuple[Event, Topic]]) -> None:
    db.executemany(
        "insert or ignore into outbox (topic, type, event_id, body) values (?, ?, ?, ?)",
        [
            (topic.name, type(event).__name__, event.event_id, event.model_dump_json())
            for event, topic in events
        ],
    )


def _dump(job: Job) -> str:
    return json.dumps({**asdict(job), "opened_at": job.opened_at.isoformat()}, allow_nan=False)


def _job(body: str) -> Job:
    fields = cast("dict[str, Any]", json.loads(body))
    mutations = tuple(Mutation(**item) for item in fields.pop("mutations"))
    opened_at = datetime.fromisoformat(fields.pop("opened_at"))
    return Job(
        **{**fields, "sample_ids": tuple(fields["sample_ids"])},
        mutations=mutations,
        opened_at=opened_at,
    )
