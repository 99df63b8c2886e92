"""The heads from the log that they are a projection of: what is missing is added, what is damaged is made anew."""

from collections.abc import Sequence
from typing import Protocol

import structlog

from reefcommon.errors import Conflict, Damaged
from reefcommon.events import Event, Release
from reefcommon.releases import ReleaseHeads
from services.publisher.domain.replay import Replay, linked, replay

log = structlog.get_logger()

WHOLE = 1_000_000_000


class ReleaseLog(Protocol):
    """The log that the heads are a projection of."""

    async def read(self) -> list[Event]:
        """Every event of it. Raises Unavailable where it does not answer."""


class Heads(ReleaseHeads, Protocol):
    """Heads whose owner can make them anew. Reads raise Damaged where what is there cannot be read, or does not fit together."""

    async def head_as_stored(self, scenario: str) -> str:
        """The id that is stored as the head, whatever it is worth; "" where there is none."""

    async def legible(self, scenario: str) -> list[Release]:
        """The releases that can be read, in no order."""

    async def replace(self, scenario: str, chain: Sequence[Release], *, stored: str) -> None:
        """Set aside what is held, and hold this chain, oldest first, instead. Raises Conflict where the stored head is another by now."""


async def rebuild(log_of_releases: ReleaseLog, heads: Heads) -> int:
    """Bring the heads up to the log; what they hold stays as it is, unless it is damaged. Returns how many releases were missing."""
    stored = {
        scenario: await heads.head_as_stored(scenario) for scenario in await heads.scenarios()
    }  # before the log is read
    state = replay(await log_of_releases.read())
    for scenario, head in stored.items():
        await _mend(heads, scenario, head, state)
    missing = 0
    for release in state.chains():
        if release.scenario in stored and await _held(heads, release):
            continue
        try:
            await heads.advance(release)
        except Conflict as error:
            log.error(
                "release_log_and_heads_differ",
                scenario=release.scenario,
                release=release.release_id,
                reason=str(error),
            )
            continue
        missing += 1
    for pending in state.pending.values():
        await heads.put_pending(pending)
    if missing:
        log.warning("heads_rebuilt", releases=missing)
    return missing


async def _held(heads: Heads, release: Release) -> bool:
    """Whether the chain has it. One that cannot be mended has what it has."""
    try:
        waiting = {pending.release_id for pending in await heads.pending(release.scenario)}
        return (
            await heads.release(release.scenario, release.release_id) is not None
            and release.release_id not in waiting
        )
    except Damaged:
        return True


async def _mend(heads: Heads, scenario: str, stored: str, state: Replay) -> None:
    """Make the heads of a scenario anew where they are damaged: from the log, and from what can still be read of releases that are not
    told in the log yet."""
    told = {
        release_id: release
        for (name, release_id), release in state.published.items()
        if name == scenario
    }
    reason = await _damage(heads, scenario, told)
    if reason is None:
        return
    legible = {release.release_id: release for release in await heads.legible(scenario)}
    chain = linked({**legible, **told}.values())
    if not chain:
        log.error(
            "heads_not_rebuilt",
            scenario=scenario,
            reason=reason,
            hint="restore Redis, or the broker's release log, from a backup",
        )
        return
    try:
        await heads.replace(scenario, chain, stored=stored)
    except Conflict as error:
        log.warning(
            "heads_not_rebuilt",
            scenario=scenario,
            reason=str(error),
            hint="the next round tries again",
        )
        return
    log.error(
        "damaged_heads_rebuilt",
        scenario=scenario,
        reason=reason,
        releases=len(chain),
        head=chain[-1].release_id,
    )


async def _damage(heads: Heads, scenario: str, told: dict[str, Release]) -> str | None:
    """What is wrong with what is held, if anything."""
    try:
        head, chain = await heads.head(scenario), await heads.chain(scenario, limit=WHOLE)
        await heads.pending(scenario)
    except Damaged as error:
        return str(error)
    if not chain or head != chain[0] or linked(chain) != chain[::-1]:
        return "the head and the chain do not fit together"
    differing = [
        release.release_id for release in chain if told.get(release.release_id, release) != release
    ]
    return f"{', '.join(differing)}: not as the release log says" if differing else None
