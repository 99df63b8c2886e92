"""What the publisher does unasked: rebuild the heads from the log, create what the configuration names, keep every node in step."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.errors import Damaged, ReefError, Unavailable
from reefcommon.events import Release
from reefcommon.releases import base_weights
from reefcommon.serving import WeightNode
from reefkit.retry import wait_for_dependencies
from services.publisher.domain.releases import Wanted, resident, wanted
from services.publisher.fleet import Fleet, Loaded, Staged
from services.publisher.handlers import Handlers
from services.publisher.publication import Publication, is_release_of
from services.publisher.rebuilding import Heads, ReleaseLog, rebuild

log = structlog.get_logger()

STAGED_KEPT_S = 600.0


@dataclass(slots=True)
class Upkeep:
    """The start of the service, and its rounds."""

    handlers: Handlers
    publication: Publication
    fleet: Fleet
    heads: Heads
    log_of_releases: ReleaseLog
    scenarios: tuple[str, ...]
    ready: bool = False
    synced: bool = False
    apart: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Configured scenarios that cannot be, because the nodes serve full weights of another one."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Scenarios whose heads cannot be read, nor made anew from the log: their nodes are left as they are. Each with the reason."""
    _untold: dict[tuple[str, str], Callable[[], Awaitable[None]]] = field(default_factory=dict)

    async def start(self) -> None:
        """Restore the heads from the log, and create the configured scenarios. May be repeated."""
        await self._restore()
        self.ready = True

    async def resume(self) -> None:
        """Finish the publications that an earlier process began."""
        await wait_for_dependencies(self.handlers.resume, name="resume")

    async def _restore(self) -> None:
        await rebuild(self.log_of_releases, self.heads)
        for scenario in self.scenarios:
            try:
                await self.handlers.create(scenario)
            except Damaged as error:
                log.error("heads_not_rebuilt", scenario=scenario, reason=str(error))
        self.refused = set(self.scenarios) - set(await self.heads.scenarios())

    async def round(self) -> None:
        """Load what is missing, unload what is too much, and put nodes back that serve again."""
        known = await self.heads.scenarios()
        missing = any(
            scenario not in known and scenario not in self.refused for scenario in self.scenarios
        )
        if missing and not self.ready:
            return  # the heads are being restored
        if missing:
            await self._restore()  # the store was emptied while we ran
        loaded = await self.fleet.loaded()
        chains = await self._chains()
        kept_contents: set[str] = set()
        for scenario in chains:
            kept = await self.publication.kept(scenario)
            kept_contents.update(kept.values())
            if any(_too_many(scenario, names, kept) for names in loaded.values()):
                await self.publication.tidy(scenario, loaded=loaded)
        await asyncio.gather(*(self._keep(node, loaded, chains) for node in self.fleet.nodes))
        self.apart = await self.fleet.rotation.apart()
        self.synced = self.synced or any(node.url not in self.apart for node in self.fleet.nodes)
        await self._tell()
        kept_contents.update(
            content
            for chain in chains.values()
            for release in chain
            for content in release.contents.values()
        )
        await asyncio.to_thread(self._sweep, kept_contents)

    async def _chains(self) -> dict[str, list[Release]]:
        """What is resident of each scenario that can be read. One that was damaged while we ran is made anew first."""
        found, damaged = await self._legible()
        if damaged.keys() - self.damaged.keys() and self.ready:
            await self._restore()
            found, damaged = await self._legible()
        self.damaged = damaged
        return found

    async def _legible(self) -> tuple[dict[str, list[Release]], dict[str, str]]:
        found: dict[str, list[Release]] = {}
        damaged: dict[str, str] = {}
        for scenario in await self.heads.scenarios():
            try:
                await self.heads.head(scenario)
                found[scenario] = await self.heads.chain(
                    scenario, limit=self.publication.resident_adapters
                )
            except Damaged as error:
                damaged[scenario] = str(error)
        return found, damaged

    async def _keep(
        self, node: WeightNode, loaded: Loaded, chains: dict[str, list[Release]]
    ) -> None:
        names = loaded[node.url]
        if isinstance(names, Unavailable):
            await self.fleet.set_apart(node.url, str(names))
            return
        if await self.fleet.being_replaced(node):
            return
        was_apart = node.url in await self.fleet.rotation.apart()
        try:
            if not await self._keep_base(node, chains, was_apart=was_apart):
                return  # a publication is on its way, and says what follows
            for scenario, chain in chains.items():
                loading = resident(chain, self.publication.resident_adapters)
                for name, content in loading.items():
                    if name not in names:
                        await self._load(node, chain[0], name, content)
                if was_apart and chain[0].adapter not in loading.keys() - names:
                    await self.fleet.probe(node, wanted(chain[0]))
                if was_apart and _too_many(
                    scenario, set(await node.models()), await self.publication.kept(scenario)
                ):
                    return  # it still refuses to unload: the reason stands
        except ReefError as error:
            await self.fleet.set_apart(node.url, str(error))
        else:
            await self.fleet.put_back(node.url)

    async def _keep_base(
        self, node: WeightNode, chains: dict[str, list[Release]], *, was_apart: bool
    ) -> bool:
        """The base weights that the head needs, on a node that was restarted, or that somebody left paused or with others.

        False where it serves what a publication is about to publish.
        """
        held = await self.fleet.base(node)
        if all(held == base_weights(chain[0]) for chain in chains.values()):
            return True
        also = (
            await self.publication.bases()
        )  # before the heads, and both anew: a publication may have begun since this round did
        heads = [
            head for scenario in chains if (head := await self.heads.head(scenario)) is not None
        ]
        head = next((head for head in heads if base_weights(head) != BASE_CONTENT_ID), heads[0])
        if held == base_weights(head) or held in also:
            return held == base_weights(head) or not was_apart
        await self.fleet.set_apart(
            node.url,
            f"{node.url} serves the weights {held or 'of an unfinished update'}, not {base_weights(head)} yet",
        )
        given = await self.fleet.checkpoint(head.scenario, base_weights(head))
        await self.fleet.replace(node, Staged(Wanted(base_weights(head)), checkpoint=given))
        return True

    async def _load(self, node: WeightNode, head: Release, name: str, content: str) -> None:
        started = time.perf_counter()
        if name == head.adapter:
            await self.fleet.set_apart(node.url, f"{node.url} does not hold {name} yet")
        await self.fleet.hold(
            node,
            Wanted(base_weights(head), name, content),
            await self.fleet.fetch(head.scenario, content),
        )
        duration_ms = (time.perf_counter() - started) * 1000
        log.info("adapter_loaded", node=node.url, adapter=name, duration_ms=round(duration_ms, 1))
        if name == head.adapter:
            self._untold[node.url, name] = partial(
                self.publication.synced,
                head.scenario,
                head.release_id,
                head.load_id,
                node.url,
                name,
                duration_ms,
            )

    async def _tell(self) -> None:
        """Say what nodes were given. A node serves whether or not this can be said now. Raises Unavailable."""
        if not self.ready:
            return
        for key, tell in tuple(self._untold.items()):
            await tell()
            self._untold.pop(key, None)

    def _sweep(self, kept: set[str]) -> None:
        """Remove staged files that no resident release needs. A node may read an adapter's files again as long as it is loaded."""
        if not self.fleet.staging.is_dir():
            return
        for path in self.fleet.staging.iterdir():
            with suppress(FileNotFoundError):
                if path.name not in kept and path.stat().st_mtime < time.time() - STAGED_KEPT_S:
                    shutil.rmtree(path, ignore_errors=True)


def _too_many(scenario: str, names: set[str] | Unavailable, kept: dict[str, str]) -> bool:
    return isinstance(names, set) and any(
        is_release_of(scenario, name) for name in names - kept.keys()
    )
