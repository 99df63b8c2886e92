"""A trial: load the candidate on a node under its own name, then unload it."""

# The steps before the first episode are retried as an episode is. If the bus gave up on the event
# instead, there would be no verdict, and the trainer waits for one.

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import structlog

from reefcommon.artifacts import ArtifactStore, materialize
from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.events import CandidateProposed, Release
from reefcommon.harness.admission import CHAT, Adapter, check_tree
from reefcommon.harness.files import read_tree
from reefcommon.harness.tree import Inadmissible, Tree
from reefcommon.ids import digest
from reefcommon.releases import adapter_name
from reefcommon.serving import ServingNode, ping
from reefkit.redis_rotation import RedisRotation, usable
from reefkit.retry import GaveUp, RetryPolicy, retried
from services.evaluator.domain.replay import head_weights, weights_key
from services.evaluator.episodes import BACKGROUND, Side

log = structlog.get_logger()

T = TypeVar("T")


class DoesNotServe(Poison):
    """The candidate cannot be loaded, or gives no answer."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Holds trials on the serving nodes. `directory` is visible to them.

    `failing`: by scenario, why no trial can be held; a trial that begins takes its scenario out.
    """

    nodes: tuple[ServingNode, ...]
    store: ArtifactStore
    directory: Path
    base_model: str
    rotation: RedisRotation
    retry: RetryPolicy
    failing: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def trial(
        self,
        candidate: CandidateProposed,
        head: Release,
        adapter: Adapter = CHAT,
        partner: CandidateProposed | None = None,
    ) -> AsyncIterator[tuple[ServingNode, tuple[Side, Side]]]:
        """Yield a node and the two sides, the candidate's first. `adapter` runs a harness.

        A partner is on the candidate's side.

        Raises:
            DoesNotServe: the content is missing or damaged, or the node refuses it or fails.
            Unavailable: no node answers, or the store does not.
        """
        node = await self._node(candidate, head)
        tree = await self._tree(head.contents.get("harness"), head.scenario)
        ours = heads = Side(head.adapter or self.base_model, tree, head_weights(head))
        try:
            for one in filter(None, (candidate, partner)):
                if one.kind == "harness":
                    # "": none, as the head of a recheck had replaced none.
                    proposed = await self._tree(one.content_id or None, one.scenario)
                    await self._admit(proposed, adapter)
                    ours = replace(ours, tree=proposed)
                else:
                    await self._load(node, one)
                    weights = weights_key(head, one.content_id)
                    ours = replace(ours, model=trial_name(one), weights=weights)
            self.failing.pop(candidate.scenario, None)
            yield node, (ours, heads)
        finally:
            await self.forget(candidate)

    @asynccontextmanager
    async def solutions(
        self, candidate: CandidateProposed, head: Release
    ) -> AsyncIterator[tuple[Path, Path | None]]:
        """Yield the directories of a solution and of the head's. Raises as `trial`."""
        # A folder for each side: the two may be one content.
        root = self._files(candidate)
        ours, heads = root / "candidate", root / "head"
        try:
            path = await self._tried(lambda: self._fetch(candidate.content_id, head.scenario, ours))
            served = head.contents.get("solution")
            theirs = None
            if served is not None:
                theirs = await self._tried(lambda: self._fetch(served, head.scenario, heads))
            self.failing.pop(candidate.scenario, None)
            yield path, theirs
        finally:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)

    async def probe(self, node: ServingNode, side: Side) -> None:
        """Ask a side for a token. Raises DoesNotServe unless its model answers."""
        await self._tried(lambda: ping(node, side.model, priority=BACKGROUND))

    async def check(self, candidate: CandidateProposed) -> None:
        root = self._files(candidate)
        try:
            await self._tried(lambda: self._fetch(candidate.content_id, candidate.scenario, root))
        finally:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)

    async def forget(self, candidate: CandidateProposed) -> None:
        """Unload the candidate on every node and remove its files. A failure is only logged."""
        await asyncio.gather(*(self._unload(node, trial_name(candidate)) for node in self.nodes))
        await asyncio.to_thread(shutil.rmtree, self._files(candidate), ignore_errors=True)

    async def _unload(self, node: ServingNode, name: str) -> None:
        try:
            await node.unload_adapter(name)
        except (Transient, Poison) as error:
            log.warning("trial_not_unloaded", node=node.url, adapter=name, reason=str(error))

    async def _node(self, candidate: CandidateProposed, head: Release) -> ServingNode:
        # The candidate's id decides where to begin, so that a repeat finds its own leftovers.
        urls = usable([node.url for node in self.nodes], await self.rotation.apart())
        chosen = [node for node in self.nodes if node.url in urls]
        first = int(digest(candidate.event_id, length=8), 16) % max(len(chosen), 1)
        reasons = []
        for node in (*chosen[first:], *chosen[:first]):
            try:
                names = await node.models()
            except (Transient, Poison) as error:
                reasons.append(str(error))
                continue
            if (head.adapter or self.base_model) in names:
                return node
            reasons.append(f"{node.url} does not hold the head {head.adapter} yet")
        why = "; ".join(reasons) or "none is configured"
        raise Unavailable(f"no serving node for a trial: {why}")

    async def _load(self, node: ServingNode, candidate: CandidateProposed) -> None:
        content, root = candidate.content_id, self._files(candidate)
        path = await self._tried(lambda: self._fetch(content, candidate.scenario, root))
        await self._tried(lambda: node.load_adapter(trial_name(candidate), str(path)))

    async def _tree(self, content: str | None, scenario: str) -> Tree:
        if content is None:
            return ()
        root = self.directory / f"trees-{digest(scenario, content, length=12)}"
        try:
            return read_tree(await self._tried(lambda: self._fetch(content, scenario, root)))
        except Poison as error:
            raise DoesNotServe(str(error)) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)

    async def _admit(self, tree: Tree, adapter: Adapter) -> None:
        # Any producer may propose a harness: no model reads it before it is admitted.
        try:
            await asyncio.to_thread(check_tree, tree, adapter)
        except Inadmissible as error:
            raise DoesNotServe(str(error)) from error

    async def _tried(self, work: Callable[[], Awaitable[T]]) -> T:
        # Unavailable is raised at once: the bus waits until it is over.
        async def call() -> T | Unavailable:
            try:
                return await work()
            except Unavailable as error:
                return error

        try:
            result = await retried(call, self.retry, (Transient,), name="trial")
        except (Poison, GaveUp) as error:
            raise DoesNotServe(str(error)) from error
        if isinstance(result, Unavailable):
            raise result
        return result

    async def _fetch(self, content: str, scenario: str, root: Path) -> Path:
        return await asyncio.to_thread(materialize, self.store, content, scenario, root)

    def _files(self, candidate: CandidateProposed) -> Path:
        return self.directory / digest(candidate.event_id, length=16)


def trial_name(candidate: CandidateProposed) -> str:
    """Return a name that no release has, so that publisher and clients leave it alone."""
    return adapter_name(candidate.scenario, f"cand-{digest(candidate.event_id, length=12)}")
