"""Proposals of people and agents in a job store, and steps as people ask for them."""

#   waiting -> the states of its job | refused before a job has it
#
# A claim is one transaction with its job, so that a proposal has at most one.

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from reefcommon.events import HarnessProposed, InstructionGiven
from reefkit.jobs.database import Database
from reefkit.jobs.model import Job
from reefkit.jobs.schema import insert_job, load

_NAMES = ("proposal_id", "state", "reason", "job_id", "candidate_id", "at", "kind")
_COLUMNS = (
    "proposal_id, state, reason, job_id, candidate_id,"
    " strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch'), kind"
)


class ProposalStore(Database):
    def put_proposal(
        self, event: HarnessProposed | InstructionGiven, at_most: int, refusal: str = ""
    ) -> bool:
        """Keep a proposal; False if it was there. It is refused if `at_most` wait already."""
        with self._transaction() as db:
            query = "select count(*) from proposals where scenario = ? and state = 'waiting'"
            (waiting,) = db.execute(query, (event.scenario,)).fetchone()
            if not refusal and waiting >= at_most:
                refusal = f"refused: {waiting} proposals wait already; send it again later"
            kind = "mutations" if isinstance(event, HarnessProposed) else "instruction"
            at_ms = int(event.at.timestamp() * 1000)
            state = "refused" if refusal else "waiting"
            row = (event.event_id, event.scenario, kind, at_ms, state, refusal)
            query = (
                "insert or ignore into proposals (proposal_id, scenario, kind, at_ms, state,"
                " reason, body) values (?, ?, ?, ?, ?, ?, ?)"
            )
            return db.execute(query, (*row, event.model_dump_json())).rowcount > 0

    def oldest_proposal(self, scenario: str) -> Mapping[str, Any] | None:
        """Return the event of the proposal that has waited longest, in JSON types."""
        query = "select body from proposals where scenario = ? and state = 'waiting'"
        rows = self._rows(f"{query} order by seq limit 1", scenario)
        return orjson.loads(rows[0][0]) if rows else None

    def claim(self, job: Job, proposal_id: str) -> bool:
        """Write the job of a waiting proposal. False if another job has it."""
        with self._transaction() as db:
            claimed = (
                "update proposals set state = ?, job_id = ?"
                " where proposal_id = ? and state = 'waiting'"
            )
            if not db.execute(claimed, (job.state, job.job_id, proposal_id)).rowcount:
                return False
            return insert_job(db, job)

    def proposal(self, scenario: str, proposal_id: str) -> dict[str, Any] | None:
        """Return a proposal for people, with its content as long as it is kept."""
        query = f"select {_COLUMNS}, body from proposals where scenario = ? and proposal_id = ?"
        for *row, body in self._rows(query, scenario, proposal_id):
            event = orjson.loads(body) if body else {}
            content = {name: event.get(name) for name in ("mutations", "text") if name in event}
            # A text that was refused may be a credential.
            content = {} if row[1] == "refused" else content
            return {**dict(zip(_NAMES, row, strict=True)), **content}
        return None

    def proposals(self, scenario: str, limit: int) -> list[dict[str, Any]]:
        """Return the newest proposals, without their content."""
        query = f"select {_COLUMNS} from proposals where scenario = ? order by seq desc limit ?"
        return [dict(zip(_NAMES, row, strict=True)) for row in self._rows(query, scenario, limit)]

    def proposal_counts(self, scenario: str) -> dict[str, int]:
        query = "select state, count(*) from proposals where scenario = ? group by state"
        return dict(self._rows(query, scenario))

    def steps(self, bindings: Sequence[str], name: str) -> list[Job]:
        """Return the jobs of bindings with this step number, job, candidate or proposal."""
        query = (
            "select body from jobs where binding in (select value from json_each(?))"
            " and (job_id = ? or candidate_id = ?"
            " or json_extract(body, '$.plan.proposal.event_id') = ?"
            " or cast(json_extract(body, '$.step') as text) = ?) order by seq"
        )
        keys = orjson.dumps(list(bindings)).decode()
        return [load(body) for (body,) in self._rows(query, keys, name, name, name, name)]
