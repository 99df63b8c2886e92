"""Proposals for a harness, as mutations or in words: durable, then claimed by the harness host."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from reefcommon import topics
from reefcommon.events import HarnessProposed, InstructionGiven, Proposal, utc_now
from reefcommon.harness.admission import MAX_MUTATIONS, MAX_TREE_BYTES, screen
from reefcommon.harness.text import objection
from reefcommon.harness.tree import Inadmissible, Mutation
from reefcommon.ids import digest, time_ordered_hex
from services.gateway.control.desk import Desk, answer_json
from services.gateway.control.harness import called_scenario
from services.gateway.domain.access import Grant
from services.gateway.domain.errors import ApiError, no_room, not_durable
from services.gateway.domain.keys import KeyEntry
from services.gateway.domain.log_event import log_event
from services.gateway.exchange.intake import traceparent_of
from services.gateway.ports import KeyStore, NotDurable, RecordLog

_PRECISE = ConfigDict(extra="forbid", frozen=True, strict=True)
Key = Annotated[
    str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", description="idempotency key")
]
StepName = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,200}$")]
Name = Annotated[str, Path(pattern=r"^prp-[0-9a-f]{32}$")]


class ProposedMutation(BaseModel):
    """A change of an entry. `options`: kind and config to create, config to update."""

    model_config = _PRECISE
    op: Literal["create", "update", "remove"]
    id: str = Field(max_length=200)
    options: dict[str, Any] | None = None
    reason: str = Field("", max_length=2000)


class NewProposal(BaseModel):
    """Body of `POST /reef/harness/proposals`."""

    model_config = ConfigDict(
        **_PRECISE,
        json_schema_extra={
            "examples": [
                {
                    "mutations": [
                        {
                            "op": "create",
                            "id": "brief",
                            "options": {"kind": "rules", "config": {"text": "Be brief."}},
                        }
                    ],
                    "reason": "long answers are not read",
                }
            ]
        },
    )
    mutations: list[ProposedMutation] = Field(min_length=1, max_length=MAX_MUTATIONS)
    reason: str = Field("", max_length=2000)
    key: Key = None


class NewInstruction(BaseModel):
    """Body of `POST /reef/train`."""

    model_config = ConfigDict(
        **_PRECISE, json_schema_extra={"examples": [{"text": "Answer in whole sentences."}]}
    )
    text: str = Field(min_length=1, max_length=8000)
    session: str | None = Field(None, max_length=256, description="the session that it is about")
    key: Key = None


@dataclass(frozen=True, slots=True)
class Proposals:
    """Makes proposals durable. Its host has the fate of each."""

    log: RecordLog
    keys: KeyStore

    async def send(self, event: Proposal, content: str, *, keyed: bool) -> None:
        """Return when a proposal is durable. Raises ApiError, Unavailable."""
        if self.log.refusal() is not None:
            raise no_room()
        if keyed:
            entry = KeyEntry(content, "proposal", event.scenario, event.scenario, "done")
            before = await self.keys.claim(event.event_id, entry, lease_s=0)
            if before is not None and before.state == "done" and before.digest != content:
                words = "The key was used before with another proposal."
                raise ApiError(409, words, code="id_conflict", param="key")
        # A repeat is written again: the first may be lost, and the host knows it by its id.
        try:
            await self.log.append(log_event(topics.PROPOSALS, event, event.scenario))
        except NotDurable:
            raise not_durable() from None


def proposal_routes(desk: Desk) -> APIRouter:
    """Return the routes by which people and agents propose."""
    routes = APIRouter(prefix="/reef", tags=["harness"])
    sender = Annotated[Grant, Depends(desk.allow("report"))]
    called = Annotated[str, Depends(called_scenario(desk, "report"))]

    @routes.post("/harness/proposals", status_code=202)
    async def propose(
        body: NewProposal, request: Request, grant: sender, scenario: called
    ) -> Response:
        """Propose changes of the harness. They are admitted and judged as a recipe's own."""
        given = [mutation.model_dump() for mutation in body.mutations]
        # Other requests go on: a screen of the largest proposal takes part of a second.
        await asyncio.to_thread(_check, given, body.reason)
        event = HarnessProposed(
            mutations=tuple(given),
            reason=body.reason,
            by_admin="admin" in grant.scopes,
            **_common(scenario, body.key, request),
        )
        return await _sent(desk, event, digest("proposal", given, body.reason), body.key)

    @routes.post("/train", status_code=202)
    async def train(body: NewInstruction, request: Request, scenario: called) -> Response:
        """Tell the harness recipe in words what to change. It sees them as data."""
        for name, value in (("text", body.text), ("session", body.session or "")):
            if (found := objection(value)) is not None:
                raise ApiError(400, f"'{name}' {found}.", code="inadmissible", param=name)
        common = _common(scenario, body.key, request)
        event = InstructionGiven(text=body.text, session_id=body.session, **common)
        return await _sent(desk, event, digest("instruction", body.text, body.session), body.key)

    return routes


def fate_routes(desk: Desk) -> APIRouter:
    """Return the routes that show what became of proposals, and whole steps."""
    routes = APIRouter(prefix="/reef/harness", tags=["harness"])
    read = Annotated[str, Depends(called_scenario(desk, "read"))]
    sent = Annotated[str, Depends(called_scenario(desk, "report"))]

    @routes.get("/proposals")
    async def proposals(scenario: read) -> Response:
        """List the newest proposals with their states."""
        return answer_json(await _of_host(desk, f"/proposals/{scenario}"))

    @routes.get("/proposals/{proposal_id}")
    async def proposal(proposal_id: Name, scenario: sent) -> Response:
        """Return a proposal with its state, and with the reason of a refusal."""
        found = await _of_host(desk, f"/proposals/{scenario}/{proposal_id}")
        if not found:
            words = (
                f"The harness host knows no proposal {proposal_id} of scenario {scenario!r} yet."
            )
            raise ApiError(404, words, code="proposal_not_found")
        return answer_json(found)

    @routes.get("/steps/{name}")
    async def steps(name: StepName, scenario: read) -> Response:
        """Return whole steps: by number, or by the id of a job, candidate, proposal or release."""
        release = await desk.scenarios.heads.release(scenario, name)
        known_as = (release.candidate_id if release is not None else None) or name
        return answer_json(await _of_host(desk, f"/steps/{scenario}/{known_as}"))

    return routes


def _check(mutations: list[dict[str, Any]], reason: str) -> None:
    try:
        size = len(orjson.dumps(mutations))
    except TypeError as error:  # JSON that no event can hold: a number of more than 64 bits
        raise ApiError(400, f"{error}.", code="invalid_json", param="mutations") from None
    if size > MAX_TREE_BYTES:
        words = f"A proposal holds at most {MAX_TREE_BYTES} bytes."
        raise ApiError(413, words, code="body_too_large", param="mutations")
    try:
        screen([Mutation(**item) for item in mutations], reason)
    except Inadmissible as error:
        raise ApiError(400, f"{error}.", code="inadmissible", param="mutations") from None


def _common(scenario: str, key: str | None, request: Request) -> dict[str, Any]:
    own = digest("proposal", scenario, key) if key is not None else time_ordered_hex()
    trace = traceparent_of(dict(request.scope["headers"]))
    return {"event_id": f"prp-{own}", "at": utc_now(), "scenario": scenario, "traceparent": trace}


async def _sent(desk: Desk, event: Proposal, content: str, key: str | None) -> Response:
    scenario = event.scenario
    desk.scenarios.exists(scenario, before_heads=True)
    assert desk.proposals is not None
    host = await desk.status.ask("harness", f"/proposals/{scenario}")
    if isinstance(host, dict):  # a host that is away reads the proposal when it is back
        if not host["at_most"]:
            words = (
                f"Scenario {scenario!r} has no recipe for a harness that takes proposals; bind"
                " one in serve.yaml, such as recipes.feedback_rules.recipe:FeedbackRulesRecipe."
            )
            raise ApiError(409, words, code="no_harness_recipe")
        # With a key it may be the repeat of a proposal that waits.
        if host["waiting"] >= host["at_most"] and key is None:
            words = f"{host['waiting']} proposals wait already; send it again later."
            raise ApiError(429, words, code="proposals_wait", retry_after_s=30)
    await desk.proposals.send(event, content, keyed=key is not None)
    row = {"proposal_id": event.event_id, "scenario": scenario, "state": "waiting"}
    return answer_json(row, 202)


async def _of_host(desk: Desk, path: str) -> dict[str, Any]:
    answer = await desk.status.ask("harness", path)
    if isinstance(answer, str):
        raise ApiError(503, "The harness host does not answer.", code="host_unavailable")
    return answer
