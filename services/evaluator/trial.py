"""One trial: the candidate is loaded on one node under a name of its own, compared with the head there, and always unloaded again.

What a trial needs before it can begin is tried as often as an episode is. The bus would give up on the event instead, without a verdict,
and the trainer waits for that.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from reefcommon.artifacts import ArtifactStore, materialize
from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.events import CandidateProposed, Release
from reefcommon.harness.admission import CHAT, check_tree
from reefcommon.harness.files import read_tree
from reefcommon.harness.tree import Inadmissible, Tree
from reefcommon.ids import digest
from reefcommon.releases import adapter_name
from reefcommon.serving import ServingNode
from reefkit.redis_rotation import usable
from services.evaluator.episodes import Side

log = structlog.get_logger()

T = TypeVar("T")


class Rotation(Protocol):
    """Which nodes are set apart."""

    async def apart(self) -> dict[str, str]:
        """Nodes out of rotation, each with the reason."""


class DoesNotServe(Poison):
    """The candidate cannot be loaded, or gives no answer: there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where trials are held."""

    nodes: tuple[ServingNode, ...]
    store: ArtifactStore
    directory: Path
    base_model: str
    rotation: Rotation
    attempts: int
    first_delay_s: float

    @asynccontextmanager
    async def trial(
        self, candidate: CandidateProposed, head: Release
    ) -> AsyncIterator[tuple[ServingNode, tuple[Side, Side]]]:
        """A node and the two sides, candidate first.

        Raises:
            DoesNotServe: the content is missing or damaged, or the node refuses it, or goes on failing.
            Unavailable: no node answers, or the store does not.
        """
        node = await self._node(candidate, head)
        tree = await self._tree(head.contents.get("harness"), head.scenario)
        model = head.adapter or self.base_model
        try:
            if candidate.kind == "harness":
                proposed = await self._tree(candidate.content_id, candidate.scenario)
                await self._admit(proposed)
                yield node, (Side(model, proposed), Side(model, tree))
            else:
                await self._load(node, candidate)
                yield node, (Side(trial_name(candidate), tree), Side(model, tree))
        finally:
            await self.forget(candidate)

    async def probe(self, node: ServingNode, side: Side) -> None:
        """One token of a side. Raises DoesNotServe where another model answers, or none."""
        ping = [{"role": "user", "content": "ping"}]
        answers = await self._tried(
            lambda: node.chat(side.model, ping, max_tokens=1, temperature=0.0)
        )
        if not answers or answers[0].model != side.model:
            raise DoesNotServe(
                f"{node.url} was asked for {side.model} and answered with {answers[0].model if answers else 'nothing'}"
            )

    async def check(self, candidate: CandidateProposed) -> None:
        """Whether the content is there and whole, where it cannot be tried. Raises DoesNotServe where it is not."""
        try:
            await self._tried(
                lambda: self._fetch(
                    candidate.content_id, candidate.scenario, self._files(candidate)
                )
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, self._files(candidate), ignore_errors=True)

    async def forget(self, candidate: CandidateProposed) -> None:
        """Unload the candidate wherever it is, and remove its files. What fails is logged: the next verdict does not depend on it."""
        await asyncio.gather(*(self._unload(node, trial_name(candidate)) for node in self.nodes))
        await asyncio.to_thread(shutil.rmtree, self._files(candidate), ignore_errors=True)

    async def _unload(self, node: ServingNode, name: str) -> None:
        try:
            await node.unload_adapter(name)
        except (Transient, Poison) as error:
            log.warning("trial_not_unloaded", node=node.url, adapter=name, reason=str(error))

    async def _node(self, candidate: CandidateProposed, head: Release) -> ServingNode:
        """A node that holds the head; which one is decided by the candidate, so that a repeat finds what it left."""
        wanted = usable([node.url for node in self.nodes], await self.rotation.apart())
        chosen = [node for node in self.nodes if node.url in wanted]
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
        raise Unavailable(
            f"no serving node for a trial: {'; '.join(reasons) or 'none is configured'}"
        )

    async def _load(self, node: ServingNode, candidate: CandidateProposed) -> None:
        path = await self._tried(
            lambda: self._fetch(candidate.content_id, candidate.scenario, self._files(candidate))
        )
        await self._tried(lambda: node.load_adapter(trial_name(candidate), str(path)))

    async def _tree(self, content: str | None, scenario: str) -> Tree:
        if content is None:
            return ()
        root = self.directory / f"trees-{digest(content, length=12)}"
        try:
            return read_tree(await self._tried(lambda: self._fetch(content, scenario, root)))
        except Poison as error:
            raise DoesNotServe(str(error)) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)

    async def _admit(self, tree: Tree) -> None:
        """Anybody may propose a harness, so it passes the same gate as one of Reef's own recipes before any model reads it."""
        try:
            await asyncio.to_thread(check_tree, tree, CHAT)
        except Inadmissible as error:
            raise DoesNotServe(str(error)) from error

    async def _tried(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result. Raises DoesNotServe where it is refused or fails too often, Unavailable at once: the bus waits for what is away."""
        delay_s = self.first_delay_s
        for attempt in range(1, self.attempts + 1):
            try:
                return await work()
            except Unavailable:
                raise
            except Poison as error:
                raise DoesNotServe(str(error)) from error
            except Transient as error:
                log.warning("trial_put_off", attempt=attempt, reason=str(error))
                if attempt == self.attempts:
                    raise DoesNotServe(f"{error} (tried {attempt} times)") from error
            await asyncio.sleep(delay_s)
            delay_s *= 2
        raise DoesNotServe("no try was allowed")

    async def _fetch(self, content: str, scenario: str, root: Path) -> Path:
        return await asyncio.to_thread(materialize, self.store, content, scenario, root)

    def _files(self, candidate: CandidateProposed) -> Path:
        return self.directory / digest(candidate.event_id, length=16)


def trial_name(candidate: CandidateProposed) -> str:
    """A name that no release ever has: the publisher leaves it alone, and clients do not know it."""
    return adapter_name(candidate.scenario, f"cand-{digest(candidate.event_id, length=12)}")
