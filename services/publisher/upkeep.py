"""Background work of the publisher: restore the heads, keep every node in step."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.errors import Damaged, Poison, ReefError, Slow, Unavailable
from reefcommon.events import Release
from reefcommon.releases import base_weights
from reefcommon.serving import WeightNode
from reefkit.retry import retried
from services.publisher.domain.releases import NodeContents, needed, resident
from services.publisher.fleet import Fleet, LoadedNames, Staged
from services.publisher.handlers import Handlers
from services.publisher.publication import WorkRunner, surplus
from services.publisher.rebuilding import RebuildableHeads, ReleaseLog, rebuild

log = structlog.get_logger()

STAGED_KEPT_S = 600.0
Chains = dict[str, list[Release]]
"""By scenario: its newest releases, newest first."""


@dataclass(slots=True)
class Upkeep:
    """The start of the service, and its rounds.

    A node is set apart at once if it is away, or after `slow_for_s` if it is slow.
    """

    handlers: Handlers
    runner: WorkRunner
    fleet: Fleet
    heads: RebuildableHeads
    release_log: ReleaseLog
    scenarios: tuple[str, ...]
    slow_for_s: float = 60.0
    ready: bool = False
    synced: bool = False
    apart: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Configured scenarios that were refused: the nodes serve full weights of another one."""
    lost: dict[str, str] = field(default_factory=dict)
    """Adapters that no node can get, with the reason."""
    _left_out: bool = False
    _slow_since: dict[str, float] = field(default_factory=dict)
    _unannounced: dict[tuple[str, str], Callable[[], Awaitable[None]]] = field(default_factory=dict)

    async def start(self) -> None:
        await self._restore()
        self.ready = True

    async def resume(self) -> None:
        await retried(self.handlers.resume, name="resume")

    async def check(self) -> str | None:
        """Return why the heads are not served yet, for `/readyz`."""
        if not self.ready:
            return "the release heads are being restored from the log"
        if not self.synced:
            return "no serving node holds the head releases yet; they are being loaded"
        return None

    def facts(self) -> dict[str, Callable[[], Any]]:
        """Return the facts of `/status`."""
        nodes = self.fleet.nodes
        return {
            "nodes": lambda: {n.url: self.apart.get(n.url, "in rotation") for n in nodes},
            "scenarios": lambda: list(self.scenarios),
            "lost": lambda: dict(self.lost),
        }

    async def _restore(self) -> None:
        await rebuild(self.release_log, self.heads)
        known = await self.heads.scenarios()
        for scenario in self.scenarios:
            if scenario not in known:
                await self.handlers.create(scenario)
        self.refused = set(self.scenarios) - set(await self.heads.scenarios())

    async def turn(self) -> None:
        """Do a round; at rest every second turn is left out."""
        at_rest = self.synced and not self.apart and not self._unannounced
        self._left_out = at_rest and not self._left_out
        if not self._left_out:
            await self.round()

    async def round(self) -> None:
        known = await self.heads.scenarios()
        if any(name not in known and name not in self.refused for name in self.scenarios):
            if not self.ready:
                return  # the heads are being restored
            await self._restore()  # the store was emptied while the service ran
            known = await self.heads.scenarios()
        loaded = await self.fleet.loaded()
        chains = await self._chains(known)
        kept_contents: set[str] = set()
        for scenario in chains:
            kept = await self.runner.kept(scenario)
            kept_contents.update(kept.values())
            if any(surplus(scenario, names, kept) for names in loaded.values()):
                await self.runner.tidy(scenario, loaded=loaded)
        await asyncio.gather(*(self._keep(node, loaded, chains) for node in self.fleet.nodes))
        wanted = set[str]().union(*(resident(chain) for chain in chains.values()))
        self.lost = {name: reason for name, reason in self.lost.items() if name in wanted}
        self.apart = await self.fleet.rotation.apart()
        self.synced = self.synced or any(node.url not in self.apart for node in self.fleet.nodes)
        await self._announce()
        releases = [release for chain in chains.values() for release in chain]
        kept_contents.update(*(release.contents.values() for release in releases))
        await asyncio.to_thread(self._sweep, kept_contents)

    async def _chains(self, names: Sequence[str]) -> Chains:
        try:
            return await self._read_chains(names)
        except Damaged:
            if not self.ready:
                raise
        await self._restore()
        return await self._read_chains(await self.heads.scenarios())

    async def _read_chains(self, names: Sequence[str]) -> Chains:
        chains = {scenario: await self.runner.chain(scenario) for scenario in names}
        for scenario, chain in chains.items():
            if await self.heads.head(scenario) is None or not chain:
                raise Damaged(f"the head and the chain of {scenario!r} do not fit together")
        return chains

    async def _keep(self, node: WeightNode, loaded: LoadedNames, chains: Chains) -> None:
        names = loaded[node.url]
        try:
            if isinstance(names, Unavailable):
                raise names
            self._slow_since.pop(node.url, None)
            if await self.fleet.being_replaced(node):
                return
            in_step = await self._bring_in_step(node, names, chains)
        except ReefError as error:
            if self._is_away(node.url, error):
                await self.fleet.set_apart(node.url, str(error))
        else:
            if in_step:
                await self.fleet.put_back(node.url)

    def _is_away(self, url: str, error: ReefError) -> bool:
        if not isinstance(error, Slow):
            return True
        now = time.monotonic()
        return now - self._slow_since.setdefault(url, now) >= self.slow_for_s

    async def _bring_in_step(self, node: WeightNode, names: set[str], chains: Chains) -> bool:
        was_apart = node.url in await self.fleet.rotation.apart()
        if not await self._keep_base(node, chains, was_apart=was_apart):
            return False
        for scenario, chain in chains.items():
            wanted = resident(chain).items()
            missing = {name: content for name, content in wanted if name not in names}
            for name, content in missing.items():
                await self._load(node, chain[0], name, content)
            if not was_apart:
                continue
            if chain[0].adapter not in missing:
                await self.fleet.probe(node, needed(chain[0]))
            kept = await self.runner.kept(scenario)
            if surplus(scenario, set(await node.models()), kept):
                return False  # it still refuses to unload: the reason stands
        return True

    async def _keep_base(self, node: WeightNode, chains: Chains, *, was_apart: bool) -> bool:
        """Restore the head's base weights. False if a publication is about to publish others."""
        held = await self.fleet.base(node)
        if all(held == base_weights(chain[0]) for chain in chains.values()):
            return True
        # Works before heads, and both anew: a publication may have begun since this round did.
        also = await self.runner.bases()
        found = [await self.heads.head(scenario) for scenario in chains]
        heads = [head for head in found if head is not None]
        head = next((head for head in heads if base_weights(head) != BASE_CONTENT_ID), heads[0])
        base = base_weights(head)
        if held == base or held in also:
            return held == base or not was_apart
        served = held or "of an unfinished update"
        reason = f"{node.url} serves the weights {served}, not {base} yet"
        await self.fleet.set_apart(node.url, reason)
        checkpoint = await self.fleet.checkpoint(head.scenario, base)
        await self.fleet.replace(node, Staged(NodeContents(base), checkpoint=checkpoint))
        return True

    async def _load(self, node: WeightNode, head: Release, name: str, content: str) -> None:
        started = time.perf_counter()
        if name == head.adapter and name not in self.lost:
            await self.fleet.set_apart(node.url, f"{node.url} does not hold {name} yet")
        try:
            await node.load_adapter(name, str(await self.fleet.fetch(head.scenario, content)))
        except Poison as error:  # no node is at fault, and other scenarios go on
            reason = f"{error}: mend what it names, or roll {head.scenario} back"
            if self.lost.get(name) != reason:
                log.error("adapter_lost", adapter=name, reason=reason)
            self.lost[name] = reason
            return
        self.lost.pop(name, None)
        await self.fleet.probe(node, NodeContents(base_weights(head), name, content))
        duration_ms = (time.perf_counter() - started) * 1000
        log.info("adapter_loaded", node=node.url, adapter=name, duration_ms=round(duration_ms, 1))
        if name == head.adapter:
            announce = partial(self.runner.synced, head, node.url, duration_ms)
            self._unannounced[node.url, name] = announce

    async def _announce(self) -> None:
        # A node serves whether or not the broker answers now: the next round announces it then.
        if not self.ready:
            return
        for key, announce in tuple(self._unannounced.items()):
            await announce()
            self._unannounced.pop(key, None)

    def _sweep(self, kept: set[str]) -> None:
        """Remove staged files that no resident release needs: a node may read them again."""
        if not self.fleet.staging.is_dir():
            return
        for path in self.fleet.staging.iterdir():
            with suppress(FileNotFoundError):
                if path.name not in kept and path.stat().st_mtime < time.time() - STAGED_KEPT_S:
                    shutil.rmtree(path, ignore_errors=True)
