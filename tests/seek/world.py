"""A gateway, an experience service and a publisher for seekers: keyed answers, counted; units and releases, delivered at least once."""

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass, field

import httpx
import orjson

from reefcommon import ids
from reefcommon.events import CandidateProposed, ReleasePublished
from tests.recipes.samples import AT, sample
from tests.trainer.rig import release


@dataclass
class World:
    """What outlives a host. `computed` counts the answers made under each key; at the `kill_at`-th effect the host is killed, before or after it."""

    kill_at: int = 0
    after: bool = False
    effects: int = 0
    answers: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    computed: Counter = field(default_factory=Counter)
    requests: list[httpx.Request] = field(default_factory=list)
    reports: dict[str, dict] = field(default_factory=dict)
    units: list = field(default_factory=list)
    publications: list = field(default_factory=list)
    faults: list[httpx.Response | Exception] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    slow_s: float = 0.0
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        body = orjson.loads(request.content)
        if request.url.path == "/reef/report":
            return await self.effect(lambda: self._report(request, body))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.slow_s)
            return await self.effect(lambda: self._answer(request, body))
        finally:
            self.under_way -= 1

    async def effect(self, act):
        """Do something that others see; the host may be killed before or after."""
        self.effects += 1
        last = self.effects == self.kill_at
        if last and not self.after:
            await self.die()
        result = act()
        if last:
            await self.die()
        return result

    async def die(self):
        self.killed.set()
        await asyncio.Event().wait()

    def _answer(self, request: httpx.Request, body: dict) -> httpx.Response:
        key = request.headers["x-reef-agent-record-id"]
        digest = hashlib.sha256(request.content).hexdigest()
        if key not in self.answers:
            self.computed[key] += 1
            text = f"answer {self.computed.total()} to {body['messages'][-1]['content']}"
            message = {"role": "assistant", "content": text}
            answer = orjson.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})
            self.answers[key] = digest, answer
        if self.answers[key][0] != digest:
            return error(409, "id_conflict", "was used before with another body")
        headers = {"x-reef-agent-record-id": key, "x-reef-release-id": "r5"}
        return httpx.Response(200, content=self.answers[key][1], headers=headers)

    def _report(self, request: httpx.Request, body: dict) -> httpx.Response:
        report_id, (receipt,) = body["agent_record_id"], body["references"]
        if self.reports.setdefault(report_id, body) != body:
            return error(409, "id_conflict", "was used before with other content")
        unit = sample(
            event_id=ids.sample_id(report_id, (receipt,)),
            record_ids=(receipt,),
            score=body["score"],
            feedback=body.get("feedback") or "words",
        )
        if unit not in self.units:
            self.units.append(unit)
        return httpx.Response(202, json={"agent_record_id": report_id})

    def judge(self, candidate: CandidateProposed) -> None:
        """Publish a candidate, once."""
        known = {event.release.candidate_id for event in self.publications}
        if candidate.event_id not in known:
            sequence = 6 + len(self.publications)
            made = release(sequence, candidate=candidate.event_id)
            self.publications.append(
                ReleasePublished(event_id=f"r{sequence}", at=AT, scenario="default", release=made)
            )


def error(status: int, code: str, message: str, **headers: str) -> httpx.Response:
    return httpx.Response(
        status, json={"error": {"message": message, "code": code}}, headers=headers
    )
