"""The harness of a scenario, and its installation for an agent."""

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

import reefagents
from reefcommon.errors import BadConfig
from reefcommon.events import Release
from reefcommon.harness.admission import check_tree
from reefcommon.harness.agent import Agent, Place, find_agent
from reefcommon.harness.files import read_tree
from reefcommon.harness.installation import Version, failure_script, plan_of, script_of
from reefcommon.harness.tree import Inadmissible, Tree
from reefcommon.ids import SCENARIO_PATTERN
from services.gateway.control.desk import Desk, answer_json
from services.gateway.domain.access import Grant, Scope
from services.gateway.domain.errors import ApiError, invalid
from services.gateway.exchange.intake import scenario_of

INSTALL = "/reef/harness/install"
CONTEXT_TOKENS = 32_768  # of nodes that do not say theirs
CHAIN = 1000  # releases that are looked through for those of the harness

_Named = Annotated[str | None, Query(pattern=SCENARIO_PATTERN)]
_SCRIPT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/x-shellscript": {"schema": {"type": "string"}}}}
}


def called_scenario(desk: Desk, scope: Scope) -> Callable[..., str]:
    """Return a dependency: the scenario of a request, for a token with the scope in it."""

    def called(
        request: Request,
        grant: Annotated[Grant, Depends(desk.allow(scope))],
        scenario: _Named = None,
    ) -> str:
        # A browser and `curl` name it in the address, Reef's clients in their header.
        named = scenario or scenario_of(dict(request.scope["headers"]))
        grant.check(scope, named)
        return named

    return called


Adapter = Annotated[str, Query(max_length=100)]
_HOST = re.compile(r"[A-Za-z0-9.\-_]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Harness:
    """The tree that serves. `default` has no release before its first request."""

    tree: Tree = ()
    release: Release | None = None

    @property
    def version(self) -> Version:
        if self.release is None:
            return Version("none", "")
        content = self.release.contents.get("harness", "")
        return Version(self.release.release_id, content, self.release.reason)


def harness_routes(desk: Desk) -> APIRouter:
    """Return the routes that show the harness."""
    routes = APIRouter(prefix="/reef/harness", tags=["harness"])
    called = Annotated[str, Depends(called_scenario(desk, "infer"))]

    @routes.get("")
    async def harness(scenario: called) -> Response:
        """Return the tree that serves."""
        found = await _head(desk, scenario)
        entries = [asdict(entry) for entry in found.tree]
        return answer_json({"scenario": scenario, **asdict(found.version), "entries": entries})

    @routes.get("/releases")
    async def releases(
        scenario: called, limit: Annotated[int, Query(ge=1, le=CHAIN)] = 50
    ) -> Response:
        """List the releases that changed the harness, and those that wait for a person."""
        desk.scenarios.exists(scenario, before_heads=True)
        chain = await desk.scenarios.heads.chain(scenario, limit=CHAIN)
        waiting = [
            one for one in await desk.scenarios.heads.pending(scenario) if one.kind == "harness"
        ]
        rows = [_row(one) for one in changes(chain)][:limit]
        return answer_json({"data": rows, "pending": [_row(one) for one in reversed(waiting)]})

    @routes.get("/adapters", dependencies=[Depends(desk.allow("infer"))])
    async def adapters() -> Response:
        """List the agents that a harness can be installed for."""
        return answer_json({"data": [_about(find_agent(name)) for name in agent_names()]})

    return routes


def installation_routes(desk: Desk) -> APIRouter:
    """Return the routes that install an agent."""
    routes = APIRouter(prefix="/reef/harness", tags=["harness"])
    called = Annotated[str, Depends(called_scenario(desk, "infer"))]

    @routes.get("/plan")
    async def planned(request: Request, scenario: called, adapter: Adapter = "pi") -> Response:
        """Return all files of an installation with their digests."""
        return answer_json(await _plan(desk, scenario, adapter, request))

    @routes.get("/install", response_class=PlainTextResponse, responses=_SCRIPT)
    async def install(request: Request, scenario: called, adapter: Adapter = "pi") -> Response:
        """Return a script that installs an agent with the harness that serves."""
        return as_script(script_of(await _plan(desk, scenario, adapter, request)))

    return routes


async def _plan(desk: Desk, scenario: str, adapter: str, request: Request) -> dict[str, Any]:
    agent = _agent(adapter)
    found = await _head(desk, scenario)
    try:
        check_tree(found.tree, agent.adapter)
    except Inadmissible as error:
        words = f"The harness of {scenario!r} cannot be installed for {agent.name}: {error}."
        raise ApiError(409, words, code="harness_not_for_agent") from None
    place = Place(_url(request), scenario, desk.intake.base_model, _context_tokens(desk))
    made = await asyncio.to_thread(plan_of, agent, found.tree, place, found.version)
    return made | {"needs_token": desk.intake.access.guarded}


def as_script(text: str) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(text, media_type="text/x-shellscript", headers=headers)


def refused_script(error: ApiError) -> Response:
    """Return a refusal as a script: a shell that reads nothing would end well."""
    return as_script(failure_script(error.status, error.message))


def changes(chain: Iterable[Release]) -> list[Release]:
    """Return the releases of a chain (newest first) whose harness is not their parent's."""
    releases = list(chain)
    before = [*(one.contents.get("harness", "") for one in releases[1:]), ""]
    return [
        release
        for release, parents in zip(releases, before, strict=True)
        if release.contents.get("harness", "") != parents
    ]


def agent_names() -> list[str]:
    """Return the names of the agents that come with Reef."""
    folders = (
        path.parent for root in reefagents.__path__ for path in Path(root).glob("*/agent.py")
    )
    return sorted(folder.name.replace("_", "-") for folder in folders)


async def _head(desk: Desk, scenario: str) -> Harness:
    desk.scenarios.exists(scenario, before_heads=True)
    release = await desk.scenarios.heads.head(scenario)
    if release is None or "harness" not in release.contents or desk.contents is None:
        return Harness(release=release)
    directory, _ = await desk.contents.find(scenario, release.release_id, "harness")
    return Harness(await asyncio.to_thread(read_tree, directory), release)


def _agent(name: str) -> Agent:
    # By HTTP only the agents of this package: another name could load any module.
    if name not in agent_names():
        words = f"There is no agent {name[:80]!r}; there are: {', '.join(agent_names())}."
        raise invalid("adapter", words)
    try:
        return find_agent(name)
    except BadConfig as error:
        raise invalid("adapter", f"The agent {name!r} cannot be used: {error}.") from None


def _url(request: Request) -> str:
    # The address by which the caller reaches the gateway, also behind a proxy.
    def first(header: str) -> str:
        return request.headers.get(header, "").split(",")[0].strip()

    scheme = first("x-forwarded-proto") or request.url.scheme
    host = first("x-forwarded-host") or request.headers.get("host", "")
    if scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise invalid("host", "The request does not say by which address it reached the gateway.")
    return f"{scheme}://{host}"


def _context_tokens(desk: Desk) -> int:
    said = [row.get("context_tokens") for row in desk.status.engines()]
    return min((length for length in said if length), default=CONTEXT_TOKENS)


def _row(release: Release) -> dict[str, Any]:
    return {
        "release_id": release.release_id,
        "content_id": release.contents.get("harness", ""),
        "sequence": release.sequence,
        "operation": release.operation,
        "reason": release.reason,
        "created_at": release.created_at.isoformat(),
    }


def _about(agent: Agent) -> dict[str, Any]:
    versions = [f"{one.name}@{one.version}" for one in agent.packages]
    kinds = sorted(agent.adapter.kinds)
    return {"name": agent.name, "about": agent.about, "kinds": kinds, "versions": versions}
