"""What became of units: the state of each, and of its job."""

from collections.abc import Collection
from dataclasses import dataclass

import orjson

from reefkit.jobs.database import Database


@dataclass(frozen=True, slots=True)
class UnitFate:
    """`unit`: the unit's state. `job`: the state of the job that has it, `number` its place."""

    unit: str
    job: str | None = None
    number: int = 0


class UnitFates(Database):
    def fates(self, binding: str, units: Collection[str]) -> dict[str, UnitFate]:
        """Return the fates of units that have arrived, by id."""
        query = (
            "select sample_id, samples.state, jobs.state, coalesce(jobs.seq, 0) from samples"
            " left join jobs on jobs.job_id = samples.job_id where samples.binding = ?"
            " and sample_id in (select value from json_each(?))"
        )
        return self._found(query, binding, units)

    def fates_of_records(self, binding: str, records: Collection[str]) -> dict[str, UnitFate]:
        """Return the fates of records that are used once: those that a job has, by receipt."""
        query = (
            "select record_id, 'used', jobs.state, jobs.seq from records"
            " join jobs on jobs.job_id = records.job_id where records.binding = ?"
            " and record_id in (select value from json_each(?))"
        )
        return self._found(query, binding, records)

    def _found(self, query: str, binding: str, ids: Collection[str]) -> dict[str, UnitFate]:
        rows = self._rows(query, binding, orjson.dumps(sorted(ids)).decode())
        return {name: UnitFate(*row) for name, *row in rows}
