"""Scenarios as the API shows them: releases, commands, and the contract with their clients."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import structlog

from reefcommon.config import ServeConfig
from reefcommon.config_sections import RecipeBinding
from reefcommon.errors import Damaged, Unavailable
from reefcommon.events import (
    PromoteRequested,
    Release,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    ScenarioCreateRequested,
)
from reefcommon.releases import may_follow
from services.gateway.domain.errors import ApiError, no_scenario
from services.gateway.handlers import Handlers
from services.gateway.ports import Command, News

log = structlog.get_logger()

_OPTIONAL = [
    "x-reef-tag-session", "x-reef-agent-record-id", "x-reef-release-id", "x-reef-capture",
    "traceparent",
]  # fmt: skip
_REPORT = {
    "references": "receipts of this scenario: required, non-empty, unique",
    "score": "finite number, higher is better: for recipes that learn from rewards",
    "feedback": "text or object: for recipes that learn from words",
    "metadata": "object, optional",
    "agent_record_id": "idempotency key, optional",
}


@dataclass
class Scenarios:
    """Reads the chains and sends commands."""

    handlers: Handlers
    config: ServeConfig | None
    _creating: dict[str, "asyncio.Task[Release | None]"] = field(default_factory=dict)

    async def snapshot(self) -> None:
        """Read every head, and the latest of each chain, into the routing table."""
        heads, table, damaged = self.handlers.heads, self.handlers.table, {}
        try:
            for scenario in await heads.scenarios():
                try:
                    for release in reversed(await heads.chain(scenario, limit=32)):
                        table.publish(release)
                except Damaged as error:
                    # the others are served all the same
                    damaged[scenario] = str(error)
                    if table.damaged.get(scenario) != str(error):
                        log.error("heads_damaged", scenario=scenario, reason=str(error))
            table.filled, table.damaged = True, damaged
        except Unavailable as error:
            log.warning("heads_unavailable", reason=str(error))

    def exists(self, scenario: str, *, before_heads: bool = False) -> None:
        """Raise ApiError (404) if there is no such scenario.

        `before_heads`: accept it while the heads were not read; `default` has records before it has
        a head.
        """
        table = self.handlers.table
        if before_heads and (not table.filled or scenario == "default"):
            return
        if table.head(scenario) is None:
            table.check(scenario)
            raise no_scenario(scenario)

    async def releases(self, scenario: str, limit: int) -> list[dict[str, Any]]:
        """Return the releases that wait for a person, then the chain, newest first."""
        chain, pending = await asyncio.gather(
            self.handlers.heads.chain(scenario, limit=limit), self.handlers.heads.pending(scenario)
        )
        if not chain and not pending:
            self.exists(scenario)
        head = chain[0] if chain else None
        waiting = [
            release_row(release, pending=True, stale_reason=await self._obstacle(release, head))
            for release in reversed(pending)
        ]
        return waiting + [
            release_row(release, current=position == 0) for position, release in enumerate(chain)
        ]

    async def _obstacle(self, pending: Release, head: Release | None) -> str:
        parent = await self.handlers.heads.release(pending.scenario, pending.parent_id or "")
        if head is None or may_follow("merge", parent, head, pending.kind):
            return ""
        made = f"made from {pending.parent_id}, but {head.release_id} is the head"
        return f"{made}: it cannot be promoted"

    async def create(self, scenario: str, traceparent: str = "") -> Release:
        """Create a scenario if it does not exist. Returns its head. Raises ApiError."""
        head = self.handlers.table.head(scenario)
        if head is not None:
            return head
        self.handlers.table.check(scenario)
        return await self._command(ScenarioCreateRequested, scenario, traceparent)

    async def create_for_traffic(self, scenario: str) -> Release | None:
        """Create a scenario that a request names. Returns its head; for `default` None."""
        task = self._creating.get(scenario)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create_quietly(scenario))
            self._creating[scenario] = task
            task.add_done_callback(lambda _: self._creating.pop(scenario, None))
        # the base model serves `default` meanwhile; requests for others wait
        if scenario == "default":
            return None
        head = await asyncio.shield(task)
        if head is None:
            words = f"The scenario {scenario!r} could not be created yet; try again."
            raise ApiError(503, words, code="scenario_not_ready", retry_after_s=5)
        return head

    async def _create_quietly(self, scenario: str) -> Release | None:
        try:
            return await self.create(scenario)
        except ApiError as error:
            log.warning("scenario_not_created", scenario=scenario, reason=error.message)
            return None

    async def rollback(
        self, scenario: str, release_id: str, reason: str, traceparent: str
    ) -> Release:
        """Serve an earlier release's content again, as a new release. Raises ApiError."""
        self.exists(scenario)
        if await self.handlers.heads.release(scenario, release_id) is None:
            raise _no_release(scenario, release_id)
        about = {"release_id": release_id, "reason": reason}
        return await self._command(RollbackRequested, scenario, traceparent, **about)

    async def promote(
        self, scenario: str, release_id: str, reason: str, traceparent: str
    ) -> Release:
        """Serve a release that waits for a person. Raises ApiError."""
        self.exists(scenario)
        pending = await self.handlers.heads.pending(scenario)
        if release_id not in {release.release_id for release in pending}:
            raise _no_release(scenario, release_id, pending=True)
        about = {"release_id": release_id, "reason": reason}
        return await self._command(PromoteRequested, scenario, traceparent, **about)

    async def _command(
        self, kind: type[Command], scenario: str, traceparent: str, **about: str
    ) -> Release:
        return published(await self.handlers.on_command(kind, scenario, traceparent, **about))

    def learns(self, scenario: str) -> bool:
        """Return whether a recipe is bound to a scenario."""
        return bool(self._bindings(scenario))

    def _bindings(self, scenario: str) -> list[RecipeBinding]:
        bindings = self.config.reef if self.config is not None else ()
        return [binding for binding in bindings if binding.scenario == scenario]

    def contract(self, scenario: str) -> dict[str, Any]:
        """Return the requests that a client must send for learning to happen."""
        self.exists(scenario)
        bindings = self._bindings(scenario)
        header = {"x-reef-scenario": scenario} if scenario != "default" else {}
        return {
            "scenario": scenario,
            "recipes": [
                {"recipe": b.recipe, "review": b.review, "knobs": b.knobs} for b in bindings
            ],
            "learns": bool(bindings),
            "inference": {
                "endpoints": ["/v1/chat/completions", "/v1/completions"],
                "headers": header,
                "optional_headers": _OPTIONAL,
                "receipt": "header x-reef-agent-record-id, of a stream too",
            },
            "report": {"endpoint": "POST /reef/report", "headers": header, "body": _REPORT},
        }


def release_row(
    release: Release, *, current: bool = False, pending: bool = False, stale_reason: str = ""
) -> dict[str, Any]:
    """Return a release as the API shows it. `stale_reason`: why it cannot be promoted."""
    row = {**release.model_dump(mode="json"), "current": current, "pending": pending}
    return {**row, "stale": bool(stale_reason), "stale_reason": stale_reason}


def published(news: News) -> Release:
    """Return the release that a command led to. Raises ApiError (409) if the publisher refused."""
    if isinstance(news, ReleasePublished):
        return news.release
    reason = news.reason if isinstance(news, ReleaseRejected) else f"unexpected event {news.type}"
    raise ApiError(409, f"The publisher refused: {reason}", code="command_refused")


def _no_release(scenario: str, release_id: str, *, pending: bool = False) -> ApiError:
    kind = "pending release" if pending else "release"
    words = (
        f"Scenario {scenario!r} has no {kind} {release_id[:80]!r}; "
        f"see /reef/scenarios/{scenario}/releases."
    )
    return ApiError(404, words, code="release_not_found", param="release_id")
