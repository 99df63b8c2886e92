"""The job store: samples, jobs, release heads and the outbox of a host.

Each method is a transaction that is on disk when it returns. Calls block for milliseconds.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import orjson

from reefcommon.events import Event, Release, Unit
from reefcommon.ids import record_times_ms
from reefcommon.topics import Topic
from reefkit.jobs import forgetting
from reefkit.jobs.model import LOST, SHOWN, UNFINISHED, Job, State
from reefkit.jobs.proposal_store import ProposalStore
from reefkit.jobs.recipe_store import Effects, Outgoing, apply_effects
from reefkit.jobs.schema import NEXT, dump, insert_job, load, load_unit, put_event
from reefkit.jobs.signal_store import SignalStore, refuse
from reefkit.jobs.unit_fates import UnitFates
from reefkit.retention import TOO_OLD

_PARSED_AT_ONCE = 16
# At most as many as a vocabulary has.
_TOKENS: dict[int, int] = {}

# Tokens, masks and log-probabilities are most of a sample's bytes.
_WEIGHT_FIELDS = {"tokens", "loss_mask", "logprobs"}
_UNIT = (
    "samples.body, signals.body from samples left join signals"
    " on signals.binding = samples.binding and signals.unit_id = samples.sample_id"
)


class JobStore(SignalStore, UnitFates, ProposalStore):
    def __init__(self, path: Path, recipes: Mapping[str, str] | None = None) -> None:
        super().__init__(path, recipes)
        # By binding and id, those of the last window: a grid of long rollouts is parsed once, not
        # at each arrival. A unit does not change once it waits for `decide`.
        self._parsed: dict[str, dict[str, Unit]] = {}

    # ------------------------------------------------------------------ samples

    def put(
        self,
        binding: str,
        sample: Unit,
        too_old: tuple[Event, Topic],
        *,
        text_only: bool,
        signalled: bool = True,
    ) -> bool:
        """Keep a sample; False if it was there. Unless `signalled`, it waits for its signal.

        A sample as old as the forgotten is refused with event `too_old`: it may have been used.
        """
        oldest_ms, newest_ms = record_times_ms(sample.record_ids)
        with self._transaction() as db:
            query = "select newest_ms from horizons where binding = ?"
            horizon = db.execute(query, (binding,)).fetchone()
            refused = horizon is not None and oldest_ms is not None and oldest_ms <= horizon[0]
            body = sample.model_dump_json(exclude=_WEIGHT_FIELDS if text_only else None).encode()
            state = "waiting" if signalled else "unsignalled"
            end = ("refused", None, TOO_OLD) if refused else (state, body, None)
            new = db.execute(
                "insert or ignore into samples (binding, sample_id, state, body, reason, newest_ms)"
                " values (?, ?, ?, ?, ?, ?)",
                (binding, sample.event_id, *end, newest_ms),
            ).rowcount
            if new and refused:
                put_event(db, *too_old)
            return new > 0

    def window(self, binding: str, limit: int) -> list[Unit]:
        query = "select sample_id from samples where binding = ? and state = 'waiting' order by seq"
        names = [name for (name,) in self._rows(f"{query} limit ?", binding, limit)]
        units = self._units(binding, names)
        self._parsed[binding] = {name: units[name] for name in names if name in units}
        return list(self._parsed[binding].values())

    def used_records(self, binding: str, record_ids: Collection[str]) -> set[str]:
        query = (
            "select record_id from records where binding = ?"
            " and record_id in (select value from json_each(?))"
        )
        return {record for (record,) in self._rows(query, binding, _json(record_ids))}

    def refuse(self, binding: str, refusals: Mapping[str, str], events: Outgoing) -> None:
        with self._transaction() as db:
            refuse(db, binding, refusals, events)

    # ------------------------------------------------------------------ jobs

    def open(self, job: Job, batch: Sequence[Unit], *, once_per_record: bool) -> None:
        """Write a job and give it its samples. May be repeated."""
        with self._transaction() as db:
            if not insert_job(db, job):
                return
            db.executemany(
                "update samples set state = 'taken', job_id = ?"
                " where binding = ? and sample_id = ?",
                [(job.job_id, job.binding, sample.event_id) for sample in batch],
            )
            if once_per_record:
                records = [record for sample in batch for record in sample.record_ids]
                rows = [(job.binding, record, job.job_id) for record in records]
                db.executemany("insert into records values (?, ?, ?)", rows)

    def samples(self, job: Job) -> list[Unit]:
        units = self._units(job.binding, job.sample_ids)
        return [units[sample_id] for sample_id in job.sample_ids]

    def save(
        self,
        job: Job,
        *,
        expected: State,
        events: Outgoing = (),
        effects: Effects | None = None,
        judged: str | None = None,
    ) -> bool:
        """Move a job to its new state, with its events; False if it is not in `expected`.

        `effects`: of the call that made its output. `judged`: a verdict for `on_verdict`, as JSON.
        Raises StateConflict.
        """
        with self._transaction() as db:
            moved = db.execute(
                f"update jobs set state = ?, candidate_id = ?, content_id = ?, updated = {NEXT},"
                " body = ? where job_id = ? and state = ?",
                (job.state, job.candidate_id, job.content_id, dump(job), job.job_id, expected),
            ).rowcount
            if not moved:
                return False
            fate = (job.state, job.reason or job.summary, job.candidate_id, job.job_id)
            told = "update proposals set state = ?, reason = ?, candidate_id = ? where job_id = ?"
            db.execute(told, fate)
            if job.state not in ("open", "produced"):
                used = "update samples set state = 'used', body = null"
                db.execute(f"{used} where job_id = ? and state = 'taken'", (job.job_id,))
            if effects is not None:
                apply_effects(db, effects)
            if judged is not None:
                db.execute(
                    "insert or ignore into verdicts (binding, job_id, state, body)"
                    " values (?, ?, ?, ?)",
                    (job.binding, job.job_id, job.state, judged),
                )
            for event in events:
                put_event(db, *event)
            return True

    def reopen(self, job: Job, refusals: Mapping[str, str], events: Outgoing = ()) -> None:
        """Remove a job without a step: its samples wait again, except the refused."""
        with self._transaction() as db:
            for change in (
                "update samples set state = 'waiting', job_id = null",
                "update proposals set state = 'waiting', job_id = null",
                "delete from records",
                "delete from jobs",
            ):
                db.execute(f"{change} where job_id = ?", (job.job_id,))
            apply_effects(db, Effects(job.binding, subject=job.job_id))
            refuse(db, job.binding, refusals, events)

    def current(self, binding: str, *, pending: bool = False) -> Job | None:
        """Return the unfinished job; with `pending`, also a job that waits for a person."""
        states = (*UNFINISHED, "pending") if pending else UNFINISHED
        condition = f"binding = ? and state in ({_marks(states)}) order by seq limit 1"
        return self._job(condition, binding, *states)

    def last(self, binding: str) -> Job | None:
        """Return the last job that made a step."""
        return self._job(
            "binding = ? and state not in ('open', 'produced', 'stored')"
            " and json_extract(body, '$.step') > 0 order by seq desc limit 1",
            binding,
        )

    def named(self, job_ids: Collection[str]) -> list[Job]:
        return self._jobs("job_id in (select value from json_each(?)) order by seq", _json(job_ids))

    def next_step(self, binding: str) -> int:
        """Return the number of the next step of a binding, from 1."""
        query = "select max(json_extract(body, '$.step')) from jobs where binding = ?"
        return int(self._rows(query, binding)[0][0] or 0) + 1

    def of_candidate(self, candidate_id: str) -> Job | None:
        return self._job("candidate_id = ?", candidate_id)

    def rejections(self, binding: str, limit: int) -> list[Job]:
        """Return the newest rejected jobs that the recipe is shown, oldest first."""
        condition = f"binding = ? and state in ({_marks(SHOWN)}) order by updated desc limit ?"
        return self._jobs(condition, binding, *SHOWN, limit)[::-1]

    # ------------------------------------------------------------------ heads

    def advance(self, release: Release, *, is_head: bool = False) -> None:
        """Keep a release, if it is the newest of its scenario, or the head for certain."""
        with self._transaction() as db:
            db.execute(
                "insert into heads values (?, ?, ?) on conflict (scenario) do update set"
                " sequence = excluded.sequence, body = excluded.body"
                " where excluded.sequence >= heads.sequence or ?",
                (release.scenario, release.sequence, release.model_dump_json(), is_head),
            )

    def head(self, scenario: str) -> Release | None:
        rows = self._rows("select body from heads where scenario = ?", scenario)
        return Release.model_validate_json(rows[0][0]) if rows else None

    # ------------------------------------------------------------------ outbox

    def unsent(self, limit: int) -> list[tuple[int, str, str, str]]:
        """Return (number, topic, event type, JSON) of unacknowledged events, in order."""
        return self._rows("select seq, topic, type, body from outbox order by seq limit ?", limit)

    def acknowledge(self, number: int) -> None:
        with self._transaction() as db:
            db.execute("delete from outbox where seq = ?", (number,))

    # ------------------------------------------------------------------ retention

    def forget(
        self, binding: str, before_ms: int, kept: Collection[str], shown: int
    ) -> dict[str, int]:
        with self._transaction() as db:
            return forgetting.forget(db, binding, before_ms, kept, shown)

    def lost(self, scenario: str) -> list[Job]:
        """Return the jobs of lost candidates whose contents are still stored."""
        condition = f"scenario = ? and state in ({_marks(LOST)}) and content_id is not null"
        return self._jobs(f"{condition} and not dropped order by seq", scenario, *LOST)

    def contents_in_use(self, scenario: str) -> set[str]:
        """Return the contents of other candidates."""
        query = (
            "select content_id from jobs where scenario = ? and content_id is not null"
            f" and state not in ({_marks(LOST)})"
        )
        return {content for (content,) in self._rows(query, scenario, *LOST)}

    def drop(self, job_ids: Collection[str]) -> None:
        """Note that the contents of these jobs are gone."""
        with self._transaction() as db:
            rows = [(job_id,) for job_id in job_ids]
            db.executemany("update jobs set dropped = 1 where job_id = ?", rows)

    # ------------------------------------------------------------------ status

    def counts(self, table: str, binding: str) -> dict[str, int]:
        query = f"select state, count(*) from {table} where binding = ? group by state"
        return dict(self._rows(query, binding))

    def refusals(self, binding: str) -> dict[str, int]:
        query = "select reason, count(*) from samples where binding = ? and state = 'refused'"
        return dict(self._rows(f"{query} group by reason", binding))

    # ------------------------------------------------------------------ inside

    def _units(self, binding: str, sample_ids: Sequence[str]) -> dict[str, Unit]:
        units = dict(self._parsed.get(binding, {}))
        missing = [name for name in sample_ids if name not in units]
        query = (
            f"select sample_id, {_UNIT} where samples.binding = ? and samples.body is not null"
            " and sample_id in (select value from json_each(?))"
        )
        # A few at a time: the JSON of a grid of long rollouts is as large as the parsed units.
        for start in range(0, len(missing), _PARSED_AT_ONCE):
            rows = self._rows(query, binding, _json(missing[start : start + _PARSED_AT_ONCE]))
            units |= {name: _shared(load_unit(*parts)) for name, *parts in rows}
        return units

    def _jobs(self, condition: str, *values: object) -> list[Job]:
        rows = self._rows(f"select body from jobs where {condition}", *values)
        return [load(body) for (body,) in rows]

    def _job(self, condition: str, *values: object) -> Job | None:
        return next(iter(self._jobs(condition, *values)), None)


def _shared(unit: Unit) -> Unit:
    # Equal token ids are one object: 8 bytes each in a long rollout in place of 36.
    known = _TOKENS.setdefault
    return unit.model_copy(update={"tokens": tuple(map(known, unit.tokens, unit.tokens))})


def _json(values: Collection[str]) -> str:
    return orjson.dumps(list(values)).decode()


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
