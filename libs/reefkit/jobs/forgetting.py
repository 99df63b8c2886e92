"""The removal of settled samples and ended jobs from a job store."""

import sqlite3
from collections.abc import Collection
from typing import Any

import orjson

from reefcommon.ids import made_at_ms
from reefkit.jobs.model import SHOWN

_SHOWN = ", ".join(f"'{state}'" for state in SHOWN)
_ENDED = f"""
select job_id from jobs where binding = :binding
  and job_id not in (select value from json_each(:kept))
  and (state in ('finished', 'published', 'refused')
       or state in ('rejected', 'aborted') and (dropped or content_id is null))
  and seq < (select max(seq) from jobs where binding = :binding
             and state not in ('open', 'produced', 'stored'))
  and seq not in (select seq from jobs where binding = :binding and state in ({_SHOWN})
                  order by updated desc limit :shown)
  and not exists (select 1 from samples where samples.job_id = jobs.job_id
                  and (newest_ms >= :before or state not in ('used', 'refused')))
  and not exists (select 1 from proposals where proposals.job_id = jobs.job_id
                  and at_ms >= :before)
"""


def forget(
    db: sqlite3.Connection, binding: str, before_ms: int, kept: Collection[str], shown: int
) -> dict[str, int]:
    """Remove ended jobs, and settled samples whose records are all older than `before_ms`.

    Keeps the jobs `kept` and the `shown` newest rejections. Returns the numbers of removed samples
    and jobs.
    """
    # Samples and records of unknown age stay: their identity is all that keeps them from being
    # used twice.
    values: dict[str, Any] = {
        "binding": binding,
        "before": before_ms,
        "kept": orjson.dumps(list(kept)).decode(),
        "shown": shown,
    }
    gone = [job for (job,) in db.execute(_ENDED, values)]
    values["jobs"] = orjson.dumps(gone).decode()
    of_jobs = "job_id in (select value from json_each(:jobs))"
    loose = "binding = :binding and job_id is null and state = 'refused'"
    old = f"newest_ms < :before and ({of_jobs} or {loose})"
    query = f"select record_id from records where {of_jobs}"
    ages = {
        record: made
        for (record,) in db.execute(query, values).fetchall()
        if (made := made_at_ms(record)) is not None and made < before_ms
    }
    (newest,) = db.execute(f"select max(newest_ms) from samples where {old}", values).fetchone()
    times = [*ages.values(), *([newest] if newest is not None else [])]
    if times:
        # A sample as old as the newest forgotten is refused from now on: it may have been used.
        db.execute(
            "insert into horizons values (?, ?) on conflict (binding) do update set"
            " newest_ms = max(newest_ms, excluded.newest_ms)",
            (binding, max(times)),
        )
    samples = db.execute(f"delete from samples where {old}", values).rowcount
    db.execute(
        "delete from signals where binding = :binding and at_ms < :before and not exists"
        " (select 1 from samples where samples.binding = signals.binding"
        " and sample_id = unit_id)",
        values,
    )
    # The row stays: a repeat of the event must not be a proposal again.
    settled = "state not in ('waiting', 'open', 'produced', 'stored', 'announced')"
    db.execute(
        f"update proposals set body = null where at_ms < :before and {settled}",
        {"before": before_ms},
    )
    forgotten = [(binding, record) for record in ages]
    db.executemany("delete from records where binding = ? and record_id = ?", forgotten)
    jobs = db.execute(f"delete from jobs where {of_jobs}", values).rowcount
    return {"samples": samples, "jobs": jobs}
