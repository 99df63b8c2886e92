"""Scenarios as the API shows them: releases, commands, and the contract with their clients."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from reefcommon.artifacts import ArtifactStore, describe
from reefcommon.config import ServeConfig
from reefcommon.config_sections import RecipeBinding
from reefcommon.errors import Damaged, Unavailable
from reefcommon.events import (
    CandidateProposed,
    HoldRequested,
    PromoteRequested,
    Release,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    ScenarioCreateRequested,
    utc_now,
)
from reefcommon.ids import time_ordered_hex
from reefcommon.releases import ReleaseHeads, may_follow
from reefcommon.routing import RoutingPolicy, write_policy
from services.gateway.domain.errors import ApiError, no_scenario
from services.gateway.domain.heads import HeadTable
from services.gateway.ports import Command, CommandBus, News, NotDurable
from services.gateway.upstream.routing import Routing

log = structlog.get_logger()

Choice = RollbackRequested | PromoteRequested

_OPTIONAL = [
    "x-reef-tag-session", "x-reef-tag-turn-type", "x-reef-session-end", "x-reef-agent-record-id",
    "x-reef-release-id", "x-reef-capture", "x-reef-harness", "traceparent",
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

    heads: ReleaseHeads
    table: HeadTable
    commands: CommandBus
    config: ServeConfig | None
    command_timeout_s: float = 30.0
    # put in when the gateway is composed
    routing: Routing | None = None
    artifacts: ArtifactStore | None = None
    _creating: dict[str, "asyncio.Task[Release | None]"] = field(default_factory=dict)

    async def snapshot(self) -> None:
        """Read every head, and the latest of each chain, into the table of heads."""
        heads, table, damaged = self.heads, self.table, {}
        try:
            for scenario in await heads.scenarios():
                try:
                    table.settle(await heads.chain(scenario, limit=32))
                except Damaged as error:
                    # the others are served all the same
                    damaged[scenario] = str(error)
                    if table.damaged.get(scenario) != str(error):
                        log.error("heads_damaged", scenario=scenario, reason=str(error))
            table.filled, table.damaged = True, damaged
        except Unavailable as error:
            log.warning("heads_unavailable", reason=str(error))

    def exists(self, scenario: str, *, before_heads: bool = False) -> None:
        """Raise ApiError if there is no such scenario (404), or its heads are damaged (503).

        `before_heads`: accept it while the heads were not read; `default` has records before it has
        a head.
        """
        table = self.table
        if before_heads and (not table.filled or scenario == "default"):
            return
        if table.head(scenario) is None:
            table.check(scenario)
            raise no_scenario(scenario)

    async def releases(self, scenario: str, limit: int) -> list[dict[str, Any]]:
        """Return the releases that wait for a person, then the chain, newest first."""
        chain, pending = await asyncio.gather(
            self.heads.chain(scenario, limit=limit), self.heads.pending(scenario)
        )
        if not chain and not pending:
            self.exists(scenario)
        head = chain[0] if chain else None
        waiting = [
            release_row(release, pending=True, stale_reason=await self._obstacle(release, head))
            for release in reversed(pending)
        ]
        rows = waiting + [
            release_row(release, current=position == 0) for position, release in enumerate(chain)
        ]
        traffic = await self.traffic(head) if head is not None else {}
        return [{**row, "traffic": traffic.get(row["release_id"])} for row in rows]

    async def traffic(self, head: Release) -> dict[str, dict[str, Any]]:
        """Return the share of sessions and the rules of each release that gets some."""
        if self.routing is None:
            return {head.release_id: {"share": 1.0, "rules": []}}
        return await self.routing.traffic(head)

    def not_routed(self, scenario: str) -> dict[str, str]:
        """Return why sessions of a release get the head instead, by release."""
        return {} if self.routing is None else self.routing.faults().get(scenario, {})

    async def route(
        self, scenario: str, policy: RoutingPolicy, reason: str, traceparent: str
    ) -> Release:
        """Serve by a routing policy from the next request on. Raises ApiError, Unavailable."""
        self.exists(scenario)
        head = await self.heads.head(scenario)
        if head is None or self.artifacts is None:
            words = "A routing policy needs an artifact store and a head release."
            raise ApiError(503, words, code="scenario_not_ready", retry_after_s=5)
        candidate = await asyncio.to_thread(_stored, self.artifacts, head, policy, reason)
        return await self._submit(candidate.model_copy(update={"traceparent": traceparent}))

    async def _obstacle(self, pending: Release, head: Release | None) -> str:
        parent = await self.heads.release(pending.scenario, pending.parent_id or "")
        if head is None or may_follow("merge", parent, head, pending.kind):
            return ""
        made = f"made from {pending.parent_id}, but {head.release_id} is the head"
        return f"{made}: it cannot be promoted"

    async def create(self, scenario: str, traceparent: str = "") -> Release:
        """Create a scenario if it does not exist. Returns its head. Raises ApiError."""
        head = self.table.head(scenario)
        if head is not None:
            return head
        self.table.check(scenario)
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

    async def serve(
        self, kind: type[Choice], scenario: str, traceparent: str, *, release_id: str, reason: str
    ) -> Release:
        """Serve a chosen release. Raises ApiError, Unavailable.

        A rollback serves an earlier release's content again, as a new release; a promotion serves
        a release that waits for a person.
        """
        self.exists(scenario)
        heads, noun = self.heads, "release"
        if kind is PromoteRequested:
            noun = "pending release"
            waiting = {release.release_id for release in await heads.pending(scenario)}
            known = release_id in waiting
        else:
            known = await heads.release(scenario, release_id) is not None
        if not known:
            words = (
                f"Scenario {scenario!r} has no {noun} {release_id[:80]!r}; "
                f"see /reef/scenarios/{scenario}/releases."
            )
            raise ApiError(404, words, code="release_not_found", param="release_id")
        about = {"release_id": release_id, "reason": reason}
        return await self._command(kind, scenario, traceparent, **about)

    async def hold(self, scenario: str, reason: str | None, traceparent: str) -> dict[str, Any]:
        """Let the winners of a scenario wait for a person; None: no more. Raises ApiError."""
        self.exists(scenario)
        about = {"event_id": f"cmd-{time_ordered_hex()}", "at": utc_now(), "reason": reason}
        await self._ask(HoldRequested(scenario=scenario, traceparent=traceparent, **about))
        waiting = await self.heads.pending(scenario)
        pending = [release.release_id for release in reversed(waiting)]
        return {"scenario": scenario, "held": reason, "pending": pending}

    async def _command(
        self, kind: type[Command], scenario: str, traceparent: str, **about: str
    ) -> Release:
        # the publisher gets the command, and answers with the release that comes of it
        command_id, at = f"cmd-{time_ordered_hex()}", utc_now()
        return await self._submit(
            kind(event_id=command_id, at=at, scenario=scenario, traceparent=traceparent, **about)
        )

    async def _submit(self, command: Command) -> Release:
        news = await self._ask(command)
        if not isinstance(news, ReleasePublished):
            raise TypeError(f"the publisher answered {command.type} by {news.type}")
        return news.release

    async def _ask(self, command: Command) -> News:
        command_id, scenario = command.event_id, command.scenario
        try:
            news = await self.commands.submit(command, timeout_s=self.command_timeout_s)
        except NotDurable:
            words = (
                f"The broker did not acknowledge the command {command_id}. Try again when it is "
                "back; /readyz and /reef/status show whether it is."
            )
            raise ApiError(503, words, code="broker_unavailable", retry_after_s=5) from None
        except TimeoutError:
            words = (
                f"The command {command_id} was sent, but the publisher did not answer within "
                f"{self.command_timeout_s:.0f} s. It will still be carried out: look at "
                f"/reef/scenarios/{scenario}/releases, and at the publisher under /reef/status."
            )
            raise ApiError(504, words, code="command_timeout") from None
        if isinstance(news, ReleaseRejected):
            words = f"The publisher refused: {news.reason}"
            raise ApiError(409, words, code="command_refused")
        return news

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


def _stored(
    artifacts: ArtifactStore, head: Release, policy: RoutingPolicy, reason: str
) -> CandidateProposed:
    with tempfile.TemporaryDirectory(prefix="reef-routing-") as folder:
        tree = Path(folder)
        write_policy(policy, tree)
        content = artifacts.put(tree, describe(tree, "routing"), head.scenario)
    return CandidateProposed(
        event_id=f"cnd-{time_ordered_hex()}",
        at=utc_now(),
        scenario=head.scenario,
        kind="routing",
        content_id=content,
        base_release_id=head.release_id,
        reason=reason,
    )


def release_row(
    release: Release, *, current: bool = False, pending: bool = False, stale_reason: str = ""
) -> dict[str, Any]:
    """Return a release as the API shows it. `stale_reason`: why it cannot be promoted."""
    row = {**release.model_dump(mode="json"), "current": current, "pending": pending}
    return {**row, "stale": bool(stale_reason), "stale_reason": stale_reason}
