"""The release that answers a session, as the routing policy of the head says."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Release
from reefcommon.releases import ReleaseHeads
from reefcommon.routing import HEAD, RoutingPolicy, read_policy
from services.gateway.domain.errors import ApiError
from services.gateway.upstream.contents import Contents

log = structlog.get_logger()

AGAIN_S = 2.0  # a policy that could not be read, or names a release that is not there
LACKING_S = 10.0


@dataclass(frozen=True, slots=True)
class FollowedPolicy:
    """The routing policy of a head, as far as it can be followed.

    `faults`: by release, or `policy`.
    """

    head_id: str
    policy: RoutingPolicy = field(default_factory=RoutingPolicy)
    releases: Mapping[str, Release] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    content: str = ""
    at: float = field(default_factory=time.monotonic)

    def fits(self, head: Release) -> bool:
        old = bool(self.faults) and time.monotonic() - self.at > AGAIN_S
        return self.head_id == head.release_id and not old


@dataclass(slots=True)
class Routing:
    """Follows the heads' routing policies. Sessions of a release that is not there get the head."""

    heads: ReleaseHeads
    contents: Contents | None
    _found: dict[str, FollowedPolicy] = field(default_factory=dict)
    _reading: dict[str, asyncio.Lock] = field(default_factory=dict)
    # by scenario and release: the time at which no node held it
    _lacking: dict[tuple[str, str], float] = field(default_factory=dict)

    async def release(self, head: Release, session: str, tags: Mapping[str, str]) -> Release:
        """Return the release for a request of a session."""
        if "routing" not in head.contents:
            return head
        found = await self.found(head)
        name = found.policy.choose(head.scenario, session, tags)
        return found.releases.get(name, head)

    async def found(self, head: Release) -> FollowedPolicy:
        """Return the policy of a head; an empty one if it has none."""
        content = head.contents.get("routing")
        if content is None:
            return FollowedPolicy(head.release_id)
        known = self._found.get(head.scenario)
        if known is not None and known.fits(head):
            return known
        # One reads for all requests that wait for it.
        async with self._reading.setdefault(head.scenario, asyncio.Lock()):
            known = self._found.get(head.scenario)
            if known is None or not known.fits(head):
                known = self._found[head.scenario] = await self._newest(head, content, known)
            return known

    async def _newest(
        self, head: Release, content: str, known: FollowedPolicy | None
    ) -> FollowedPolicy:
        found = replace(await self._read(head), content=content)
        for name, fault in found.faults.items():
            log.warning("not_routed", scenario=head.scenario, release=name, reason=fault)
        if "policy" not in found.faults or known is None or known.content != content:
            return found
        # A store that is away moves no session that knows its release.
        faults = {**known.faults, "policy": found.faults["policy"]}
        return replace(known, head_id=head.release_id, faults=faults, at=found.at)

    async def traffic(self, head: Release) -> dict[str, dict[str, Any]]:
        """Return who gets what, by release: the share of the sessions, and the rules."""
        found = await self.found(head)
        rows: dict[str, dict[str, Any]] = {}

        def row(name: str) -> dict[str, Any]:
            there = name if name in found.releases else head.release_id
            return rows.setdefault(there, {"share": 0.0, "rules": []})

        for name, share in ((HEAD, found.policy.rest), *found.policy.shares.items()):
            row(name)["share"] = round(row(name)["share"] + share, 12)
        for rule in found.policy.rules:
            row(rule.release)["rules"].append({"tag": rule.tag, "value": rule.value})
        return rows

    def lacks(self, release: Release) -> None:
        """Note that no node holds a release now: its request gets the head."""
        key = release.scenario, release.release_id
        if key not in self._lacking:
            log.warning("routed_to_head", scenario=key[0], release=key[1])
        self._lacking[key] = time.monotonic()

    def faults(self) -> dict[str, dict[str, str]]:
        """Return the reasons why sessions get the head instead, by scenario and release."""
        now = time.monotonic()
        self._lacking = {key: at for key, at in self._lacking.items() if now - at < LACKING_S}
        shown = {name: dict(found.faults) for name, found in self._found.items() if found.faults}
        for scenario, release_id in self._lacking:
            shown.setdefault(scenario, {})[release_id] = "no serving node holds it"
        return shown

    async def _read(self, head: Release) -> FollowedPolicy:
        own, scenario = head.release_id, head.scenario
        try:
            if self.contents is None:
                return FollowedPolicy(own, faults={"policy": "no artifact store is configured"})
            directory, _ = await self.contents.find(scenario, own, "routing")
            policy = await asyncio.to_thread(read_policy, directory)
            waiting = {one.release_id for one in await self.heads.pending(scenario)}
            named = {name: await self.heads.release(scenario, name) for name in policy.releases}
        except (ApiError, Poison, Unavailable) as error:
            return FollowedPolicy(own, faults={"policy": str(error)})
        gone = {name: "there is no such release" for name, one in named.items() if one is None}
        # The load of a release that waits is not decided yet: another may take its number first.
        later = {"load_id": "", "loads": {}}
        releases = {
            name: one.model_copy(update=later) if name in waiting else one
            for name, one in named.items()
            if one is not None
        }
        return FollowedPolicy(own, policy, releases, gone)
