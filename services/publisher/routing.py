"""The releases that routing policies name: they stay loaded like the head."""

import asyncio
from dataclasses import dataclass, field

import structlog

from reefcommon.errors import Poison
from reefcommon.events import Release
from reefcommon.releases import ReleaseHeads, base_weights
from reefcommon.routing import RoutingPolicy, read_policy
from services.publisher.fleet import Fleet

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Routed:
    """Reads the policies of releases, each content once."""

    heads: ReleaseHeads
    fleet: Fleet
    _policies: dict[str, RoutingPolicy] = field(default_factory=dict)

    async def named(self, release: Release) -> list[Release]:
        """Return the releases that a release's policy names, as far as they are there.

        Raises Unavailable.
        """
        if "routing" not in release.contents:
            return []
        try:
            policy = await self._policy(release)
        except Poison as error:  # a release is never refused after it was published
            log.error("routing_damaged", release=release.release_id, reason=str(error))
            return []
        found = [await self.heads.release(release.scenario, name) for name in policy.releases]
        return [one for one in found if one is not None]

    async def admit(self, planned: Release) -> list[Release]:
        """Return the releases that a planned release will route to.

        Raises:
            Poison: its policy is damaged, or names a release that cannot serve beside it.
            Unavailable: a store does not answer.
        """
        found, policy = [], await self._policy(planned)
        for name in policy.releases:
            one = await self.heads.release(planned.scenario, name)
            if one is None:
                raise Poison(f"the routing policy names {name}, and there is no such release")
            if base_weights(one) != base_weights(planned):
                raise Poison(f"the routing policy names {name}, which has other base weights")
            # A rule may: it keeps a tag's sessions there when the head moves on.
            if name in policy.shares and _content(one) == _content(planned):
                raise Poison(f"the content of {name} is that of the head, which serves already")
            found.append(one)
        return found

    async def _policy(self, release: Release) -> RoutingPolicy:
        content = release.contents["routing"]
        if content not in self._policies:
            tree = await self.fleet.fetch(release.scenario, content)
            self._policies[content] = await asyncio.to_thread(read_policy, tree)
        return self._policies[content]


def _content(release: Release) -> dict[str, str]:
    return {kind: name for kind, name in release.contents.items() if kind != "routing"}
