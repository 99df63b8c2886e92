"""Scenario -> head release, in memory. A change affects the next request, never one that is under way."""

from collections import OrderedDict

from reefcommon.events import Release
from services.gateway.domain.errors import ApiError

RELEASES_A_SCENARIO = 64


class RoutingTable:
    """Heads and the recent releases of each scenario. A release with a lower sequence never replaces a head.

    `filled` is set once the store of heads was read: before that an absent head says nothing. `damaged` names scenarios that are there
    and whose heads could not be read, each with the reason.
    """

    def __init__(self) -> None:
        self.filled = False
        self.damaged: dict[str, str] = {}
        self._heads: dict[str, Release] = {}
        self._recent: dict[str, OrderedDict[str, Release]] = {}

    def head(self, scenario: str) -> Release | None:
        """What serves the scenario now; None where it does not exist."""
        return self._heads.get(scenario)

    def check(self, scenario: str) -> None:
        """For a scenario without a head here. Raises ApiError (503) where it has one that could not be read."""
        if (reason := self.damaged.get(scenario)) is not None:
            raise ApiError(
                503,
                f"The scenario {scenario!r} is not ready: {reason}.",
                code="scenario_not_ready",
                retry_after_s=5,
            )

    def release(self, scenario: str, release_id: str) -> Release | None:
        """A recent release of the scenario."""
        return self._recent.get(scenario, OrderedDict()).get(release_id)

    def scenarios(self) -> list[str]:
        """Every scenario with a head."""
        return sorted(self._heads)

    def publish(self, release: Release) -> bool:
        """Take a release that became the head. True where it is news."""
        recent = self._recent.setdefault(release.scenario, OrderedDict())
        recent[release.release_id] = release
        while len(recent) > RELEASES_A_SCENARIO:
            recent.popitem(last=False)
        head = self._heads.get(release.scenario)
        if head is not None and release.sequence <= head.sequence:
            return False
        self._heads[release.scenario] = release
        return True
