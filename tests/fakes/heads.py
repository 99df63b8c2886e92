"""ReleaseHeads in memory."""

from collections import defaultdict

from reefcommon.errors import Conflict
from reefcommon.events import Release


class MemoryReleaseHeads:
    """Chains (newest first) and pending releases of every scenario."""

    def __init__(self) -> None:
        self.chains: dict[str, list[Release]] = defaultdict(list)
        self.waiting: dict[str, dict[str, Release]] = defaultdict(dict)
        self.holds: dict[str, str] = {}

    async def head(self, scenario: str) -> Release | None:
        return next(iter(self.chains[scenario]), None)

    async def chain(self, scenario: str, *, limit: int = 100) -> list[Release]:
        return self.chains[scenario][:limit]

    async def release(self, scenario: str, release_id: str) -> Release | None:
        known = {item.release_id: item for item in self.chains[scenario]}
        return known.get(release_id) or self.waiting[scenario].get(release_id)

    async def advance(self, release: Release) -> None:
        chain = self.chains[release.scenario]
        stored = next((item for item in chain if item.release_id == release.release_id), None)
        if stored is not None and stored != release:
            found = "another release under the same id"
        elif stored is None and (chain[0].release_id if chain else None) != release.parent_id:
            found = chain[0].release_id if chain else "nothing"
        else:
            found = ""
        if found:
            raise Conflict(
                f"release {release.release_id} expects {release.parent_id}, found {found}"
            )
        if stored is None:
            chain.insert(0, release)

    async def scenarios(self) -> list[str]:
        return sorted(scenario for scenario, chain in self.chains.items() if chain)

    async def put_pending(self, release: Release) -> None:
        self.waiting[release.scenario][release.release_id] = release

    async def pending(self, scenario: str) -> list[Release]:
        waiting = self.waiting[scenario].values()
        return sorted(waiting, key=lambda item: (item.created_at, item.release_id))

    async def drop_pending(self, scenario: str, release_id: str) -> None:
        self.waiting[scenario].pop(release_id, None)

    async def hold(self, scenario: str, reason: str | None) -> None:
        if reason is None:
            self.holds.pop(scenario, None)
        else:
            self.holds[scenario] = reason

    async def held(self, scenario: str) -> str | None:
        return self.holds.get(scenario)

    async def forget(self, scenario: str) -> None:
        self.chains.pop(scenario, None)
        self.waiting.pop(scenario, None)
