"""Head releases by scenario, in memory. A change affects later requests only."""

from collections.abc import Sequence

from reefcommon.events import Release
from services.gateway.domain.errors import ApiError

RELEASES_A_SCENARIO = 64


class HeadTable:
    """Heads and recent releases of each scenario."""

    def __init__(self) -> None:
        # the store of heads was read; before that an absent head has no meaning
        self.filled = False
        # scenarios whose heads could not be read, with the reason
        self.damaged: dict[str, str] = {}
        self._heads: dict[str, Release] = {}
        self._recent: dict[str, dict[str, Release]] = {}  # oldest first

    def head(self, scenario: str) -> Release | None:
        return self._heads.get(scenario)

    def check(self, scenario: str) -> None:
        """Raise ApiError (503) if the scenario's heads are damaged."""
        if (reason := self.damaged.get(scenario)) is not None:
            words = f"The scenario {scenario!r} is not ready: {reason}."
            raise ApiError(503, words, code="scenario_not_ready", retry_after_s=5)

    def release(self, scenario: str, release_id: str) -> Release | None:
        return self._recent.get(scenario, {}).get(release_id)

    def heads(self) -> list[Release]:
        """Return the heads, in the order of their scenarios."""
        return [head for _, head in sorted(self._heads.items())]

    def settle(self, chain: Sequence[Release]) -> None:
        """Take the newest releases of a scenario, newest first, as the store of heads has them."""
        for release in reversed(chain):
            self._add(release)
            self._heads[release.scenario] = release

    def publish(self, release: Release) -> bool:
        """Take the news of a release. Returns True if it is the head now.

        News that come late are of a release that may still be asked for. If it is no child of the
        head it is left out: the store of heads says which it is.
        """
        head = self._heads.get(release.scenario)
        late = head is not None and release.sequence <= head.sequence
        if not late and head is not None and release.parent_id != head.release_id:
            return False
        self._add(release)
        if not late:
            self._heads[release.scenario] = release
        return not late

    def _add(self, release: Release) -> None:
        recent = self._recent.setdefault(release.scenario, {})
        recent[release.release_id] = release
        if len(recent) > RELEASES_A_SCENARIO:
            del recent[next(iter(recent))]
