"""Candidates over HTTP: files of a recipe on another host, or of a person."""

import asyncio
import base64
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from reefcommon import topics
from reefcommon.artifacts import MANIFEST_NAME, ArtifactStore, describe, safe_path
from reefcommon.config import ServeConfig
from reefcommon.errors import BadConfig, Poison
from reefcommon.events import CandidateProposed, Lineage, Release, utc_now
from reefcommon.harness.admission import CHAT, Adapter, check_tree
from reefcommon.harness.agent import find_agent
from reefcommon.harness.files import read_tree
from reefcommon.harness.text import value_objection
from reefcommon.ids import digest
from reefcommon.releases import ReleaseHeads
from services.gateway.control.desk import Desk, Scenario, answer_json
from services.gateway.domain.errors import ApiError, invalid, not_durable
from services.gateway.domain.log_event import log_event
from services.gateway.exchange.intake import traceparent_of
from services.gateway.ports import NotDurable

# A folder is made for each slash. Trees that are stored already may be deeper.
MAX_FILES, MAX_DEPTH, MAX_SLASHES = 1000, 32, 10_000
# Full weights are for a recipe beside the artifact store.
Kinds = Literal["harness", "solution", "lora"]
Metric = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")]
_LORA = ("adapter_config.json", "adapter_model.safetensors")


class NewCandidate(BaseModel):
    """Body of `POST /reef/scenarios/{s}/candidates`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Kinds
    files: dict[str, str] = Field(min_length=1, max_length=MAX_FILES)
    """base64 by relative path"""
    base_release_id: str | None = Field(None, max_length=200)
    """the release that it was made from; absent: the head"""
    recipe: str = Field("", max_length=200, pattern=r"^[A-Za-z0-9_.:-]*$")
    """the name of the recipe that made it: its plan judges it"""
    metrics: dict[Metric, FiniteFloat] = Field({}, max_length=100)
    reason: str = Field("", max_length=2000)


def candidate_routes(desk: Desk) -> APIRouter:
    """Return the route that takes candidates; none without an artifact store."""
    routes = APIRouter(prefix="/reef/scenarios/{scenario}", tags=["releases"])
    contents, proposals = desk.contents, desk.proposals
    if contents is None or proposals is None:
        return routes
    store, heads = contents.store, desk.scenarios.heads

    @routes.post("/candidates", status_code=202, dependencies=[Depends(desk.allow("admin"))])
    async def propose(scenario: Scenario, body: NewCandidate, request: Request) -> Response:
        """Store files and propose them as a candidate, to be judged as any other."""
        desk.scenarios.exists(scenario)
        if (found := value_objection(body.reason)) is not None:
            raise invalid("reason", f"'reason' {found}.")
        base = await _base(heads, scenario, body.base_release_id)
        adapter, lineage = _adapter(desk.scenarios.config, scenario), Lineage(recipe=body.recipe)
        content = await asyncio.to_thread(_stored, store, scenario, body, lineage, adapter)
        event = CandidateProposed(
            # The same files on the same base are the same candidate.
            event_id="cnd-" + digest("http", scenario, content, base.release_id, body.recipe),
            at=utc_now(),
            scenario=scenario,
            traceparent=traceparent_of(dict(request.scope["headers"])),
            kind=body.kind,
            content_id=content,
            base_release_id=base.release_id,
            metrics=body.metrics,
            lineage=lineage,
            reason=body.reason,
        )
        try:
            await proposals.log.append(log_event(topics.CANDIDATES, event, scenario))
        except NotDurable:
            raise not_durable() from None
        row = {"candidate_id": event.event_id, "content_id": content}
        return answer_json({**row, "base_release_id": base.release_id}, 202)

    return routes


async def _base(heads: ReleaseHeads, scenario: str, release_id: str | None) -> Release:
    asked = heads.head(scenario) if release_id is None else heads.release(scenario, release_id)
    base = await asked
    if base is None:
        words = f"Scenario {scenario!r} has no release {(release_id or 'yet')[:80]!r}."
        raise ApiError(404, words, code="release_not_found", param="base_release_id")
    return base


def _adapter(config: ServeConfig | None, scenario: str) -> Adapter:
    # The evaluator admits it again, for the agent of the recipe's own evaluation too.
    if config is None or config.evaluation.runner_of(scenario) != "agent":
        return CHAT
    try:
        return find_agent(config.evaluation.agent.adapter).adapter
    except BadConfig as error:
        raise ApiError(503, f"{error}.", code="agent_unusable") from None


def _stored(
    store: ArtifactStore, scenario: str, body: NewCandidate, lineage: Lineage, adapter: Adapter
) -> str:
    with tempfile.TemporaryDirectory(prefix="reef-upload-") as scratch:
        root = Path(scratch)
        try:
            _write(root, body.files)
            _check(root, body, adapter)
            manifest = describe(root, body.kind, metrics=dict(body.metrics), lineage=lineage)
        except Poison as error:
            raise invalid("files", f"'files': {error}.") from None
        return store.put(root, manifest, scenario)


def _write(root: Path, files: Mapping[str, str]) -> None:
    slashes = [name.count("/") for name in files]
    if max(slashes) > MAX_DEPTH or sum(slashes) > MAX_SLASHES:
        raise Poison(f"more than {MAX_DEPTH} folders deep, or {MAX_SLASHES} slashes in all")
    for name, text in files.items():
        path = root / safe_path(name)
        if path.name == MANIFEST_NAME:
            raise Poison(f"the name {MANIFEST_NAME} is Reef's own")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(text, validate=True))
        except (ValueError, OSError):
            raise Poison(f"{name[:80]!r} is no base64, or no name of a file") from None


def _check(root: Path, body: NewCandidate, adapter: Adapter) -> None:
    if body.kind == "harness":
        check_tree(read_tree(root), adapter)
    if body.kind == "lora" and (missing := [one for one in _LORA if one not in body.files]):
        raise Poison(f"a LoRA has {', '.join(_LORA)}; missing: {', '.join(missing)}")
