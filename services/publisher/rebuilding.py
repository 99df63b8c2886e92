"""The rebuild of the heads from the release log."""

from typing import Protocol

import structlog

from reefcommon.errors import Conflict, Damaged
from reefcommon.events import Event, Release
from reefcommon.releases import ReleaseHeads
from services.publisher.domain.replay import Replay, replay

log = structlog.get_logger()

WHOLE = 1_000_000_000


class ReleaseLog(Protocol):
    async def read(self) -> list[Event]:
        """Return every event. Raises Unavailable if the broker does not answer."""


class RebuildableHeads(ReleaseHeads, Protocol):
    """Heads that can be deleted. Reads raise Damaged if a value cannot be read."""

    async def forget(self, scenario: str) -> None: ...


async def rebuild(release_log: ReleaseLog, heads: RebuildableHeads) -> int:
    """Bring the heads up to the log. Returns the number of missing releases.

    Raises:
        Damaged: heads cannot be read, and the log lacks their chain.
    """
    stored = await heads.scenarios()  # before the log is read: it holds all of their releases
    state = replay(await release_log.read())
    known = {name: await _known(heads, name, state) for name in stored}
    # Before its head: a winner may come in between, or a kill, after which it would be left out.
    for scenario in state.held.keys() - set(stored):
        await heads.hold(scenario, state.held[scenario])
    missing = 0
    for release in state.chains():
        if release.release_id in known.get(release.scenario, ()):
            continue
        try:
            await heads.advance(release)
        except Conflict as error:
            log.error("release_log_and_heads_differ", scenario=release.scenario, reason=str(error))
        else:
            missing += 1
    for pending in state.pending.values():
        await heads.put_pending(pending)
    if missing:
        log.warning("heads_rebuilt", releases=missing)
    return missing


async def _known(heads: RebuildableHeads, scenario: str, state: Replay) -> set[str]:
    try:
        chain: list[Release] = await heads.chain(scenario, limit=WHOLE)
        head = await heads.head(scenario)
        await heads.pending(scenario)
    except Damaged as error:
        reason = str(error)
    else:
        if chain and head == chain[0]:
            return {release.release_id for release in chain}
        reason = "the head and the chain do not fit together"
    if not any(name == scenario for name, _ in state.published):
        raise Damaged(f"{reason}; restore Redis, or the broker's release log, from a backup")
    log.error("damaged_heads_deleted", scenario=scenario, reason=reason)
    await heads.forget(scenario)
    return set()
