"""The serving nodes together: stage a release, probe it, unload surplus adapters."""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from prometheus_client import Gauge

from reefcommon.artifacts import BASE_CONTENT_ID, ArtifactStore, materialize
from reefcommon.errors import Poison, ReefError, Transient, Unavailable
from reefcommon.serving import WeightNode, WrongModel, ping
from reefkit.redis_rotation import RedisRotation, usable
from services.publisher import full_weights
from services.publisher.domain.releases import NodeContents
from services.publisher.full_weights import SUSPECT, Checkpoint, FullWeights

log = structlog.get_logger()

IN_ROTATION = Gauge("reef_node_in_rotation", "1 while a serving node is in rotation", ["node"])


Nodes = Collection[WeightNode]
LoadedNames = Mapping[str, set[str] | Unavailable]
"""By node: the names that it serves now, or why it gave no answer."""


class ReleaseRefused(Poison):
    """The nodes or this deployment can never serve a release."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Contents with their files on disk. `checkpoint` is None if no node needs base weights."""

    contents: NodeContents
    adapter_path: Path | None = None
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes, the artifact store, and a directory that every node sees.

    `full` moves full weights. If it is None, base weights are ignored.
    """

    nodes: tuple[WeightNode, ...]
    store: ArtifactStore
    staging: Path
    base_model: str
    rotation: RedisRotation
    stage_within_s: float = 60.0
    full: FullWeights | None = None
    base_path: Path | None = None

    async def stage(self, scenario: str, contents: NodeContents) -> dict[str, float]:
        """Load contents on the nodes in rotation and probe them. Returns milliseconds by node.

        A failing node is set apart if another node holds them.

        Raises:
            WrongModel: another model, or other weights, answered.
            ReleaseRefused: no node takes them.
            Poison: a content is missing or damaged.
            Unavailable: no node answers, or the artifact store does not.
        """
        apart = await self.rotation.apart()
        urls = usable([node.url for node in self.nodes], apart)
        chosen = [node for node in self.nodes if node.url in urls]
        staged = await self._prepare(scenario, contents, chosen)
        results = await self._try_all(chosen, staged)
        held = {url: taken for url, taken in results.items() if isinstance(taken, float)}
        failed = {url: error for url, error in results.items() if isinstance(error, ReefError)}
        for error in failed.values():
            if isinstance(error, WrongModel):
                raise error
        if held:
            for url, error in failed.items():
                await self.set_apart(url, str(error))
            return held
        own = self.base_model if contents.base == BASE_CONTENT_ID else contents.base
        name = contents.adapter or own
        why = {url: f" ({apart[url]})" if url in apart else "" for url in failed}
        reasons = "; ".join(f"{error}{why[url]}" for url, error in failed.items())
        if any(isinstance(error, Transient) for error in failed.values()) or not failed:
            raise Unavailable(f"no serving node took {name}: {reasons or 'none is configured'}")
        raise ReleaseRefused(f"every serving node refused {name}: {reasons}")

    async def fetch(self, scenario: str, content_id: str) -> Path:
        root = self.staging.resolve()
        return await asyncio.to_thread(materialize, self.store, content_id, scenario, root)

    async def _prepare(self, scenario: str, contents: NodeContents, nodes: Nodes) -> Staged:
        path = await self.fetch(scenario, contents.lora) if contents.lora else None
        found = await asyncio.gather(*(self._base(node) for node in nodes))
        bases = [base for base in found if isinstance(base, str)]
        checkpoint = None
        # Full weights may be large: they are read only if a node serves other ones.
        if any(base != contents.base for base in bases):
            try:
                checkpoint = await self.checkpoint(scenario, contents.base)
            except ReleaseRefused:
                if contents.base not in bases:
                    raise
        return Staged(contents, path, checkpoint)

    async def checkpoint(self, scenario: str, content_id: str) -> Checkpoint:
        if self.full is None:
            off = "REEF_PUBLISHER_WEIGHT_TRANSFER=off forbids"
            raise ReleaseRefused(f"full weights reach the nodes by weight transfer, which {off}")
        if content_id != BASE_CONTENT_ID:
            return await Checkpoint.read(content_id, await self.fetch(scenario, content_id))
        if self.base_path is None:
            remedy = "set REEF_MODEL_PATH, the directory that the nodes were started with"
            raise ReleaseRefused(f"the base model's weights are needed again: {remedy}")
        return await Checkpoint.read(content_id, self.base_path)

    async def _base(self, node: WeightNode) -> str | ReefError:
        try:
            return await self.base(node)
        except ReefError as error:
            return error

    async def base(self, node: WeightNode) -> str:
        """Return a node's base weights; "" during an unfinished update."""
        if self.full is None:
            return BASE_CONTENT_ID
        if (await self.rotation.apart()).get(node.url, "").startswith(SUSPECT):
            return ""
        if await node.is_paused():
            return ""
        return full_weights.content_of((await node.weights()).version)

    async def being_replaced(self, node: WeightNode) -> bool:
        return self.full is not None and await self.full.lease(node.url).taken()

    async def _try_all(self, nodes: Nodes, staged: Staged) -> dict[str, float | ReefError]:
        # Every node is waited for, also if this is cancelled: each resumes first.
        tries = {node.url: asyncio.create_task(self._try(node, staged)) for node in nodes}
        await asyncio.gather(*tries.values(), return_exceptions=True)
        return {url: attempt.result() for url, attempt in tries.items()}

    async def _try(self, node: WeightNode, staged: Staged) -> float | ReefError:
        started = time.perf_counter()
        try:
            # Each step of a replacement has a deadline of its own.
            if await self.base(node) != staged.contents.base:
                await self.replace(node, staged)
            async with asyncio.timeout(self.stage_within_s):
                await self.hold(node, staged.contents, staged.adapter_path)
        except ReefError as error:
            return error
        except TimeoutError:
            limit = f"{self.stage_within_s:g} s"
            return Unavailable(f"{node.url} took longer than {limit} to load and answer")
        return (time.perf_counter() - started) * 1000

    async def replace(self, node: WeightNode, staged: Staged) -> None:
        base = staged.contents.base
        if self.full is None or staged.checkpoint is None:
            raise Unavailable(f"{node.url} came back with other weights than {base}, or is paused")
        await self.full.replace(node, staged.checkpoint, self.set_apart)
        if node.url in await self.rotation.apart():
            reason = f"{node.url} has the weights {base} now, and is to be probed"
            await self.rotation.set_apart(node.url, reason)

    async def hold(self, node: WeightNode, contents: NodeContents, path: Path | None) -> None:
        if contents.adapter is not None:
            await node.load_adapter(contents.adapter, str(path))
        await self.probe(node, contents)

    async def probe(self, node: WeightNode, contents: NodeContents) -> None:
        """Ask for a token. Raises WrongModel if another model or other weights answer."""
        model = contents.adapter or self.base_model
        version = (await ping(node, model)).weight_version
        checked = self.full is not None and contents.adapter is None and version
        if checked and full_weights.content_of(version) != contents.base:
            asked = f"{node.url} was asked for the weights {contents.base}"
            raise WrongModel(f"{asked} and answered with {version}")

    async def restore(self, scenario: str, base: str, also: Collection[str]) -> None:
        """Put base weights on the nodes that serve neither these nor a member of `also`.

        A failing node is set apart; upkeep retries it.
        """
        bases = await asyncio.gather(*(self._base(node) for node in self.nodes))
        wrong = [
            node
            for node, served in zip(self.nodes, bases, strict=True)
            if isinstance(served, str) and served not in {base, *also}
        ]
        if not wrong:
            return
        staged = Staged(NodeContents(base), checkpoint=await self.checkpoint(scenario, base))
        for url, result in (await self._try_all(wrong, staged)).items():
            if isinstance(result, ReefError):
                await self.set_apart(url, str(result))

    async def unload(self, node: WeightNode, names: list[str]) -> None:
        """Unload adapters from a node. If it refuses, it is set apart."""
        refusal = ""
        for name in names:
            try:
                await node.unload_adapter(name)
                log.info("adapter_unloaded", node=node.url, adapter=name)
            except (Transient, Poison) as error:
                refusal = str(error)
        if refusal:
            await self.set_apart(node.url, refusal)

    async def loaded(self) -> LoadedNames:
        found = await asyncio.gather(*(self._models(node) for node in self.nodes))
        return dict(zip((node.url for node in self.nodes), found, strict=True))

    async def _models(self, node: WeightNode) -> set[str] | Unavailable:
        try:
            return set(await node.models())
        except (Transient, Poison) as error:
            return error if isinstance(error, Unavailable) else Unavailable(str(error))

    async def set_apart(self, url: str, reason: str) -> None:
        """Take a node out of rotation."""
        known = (await self.rotation.apart()).get(url, "")
        # A later reason does not replace a failed update.
        if known != reason and not known.startswith(SUSPECT):
            log.warning("node_set_apart", node=url, reason=reason)
            await self.rotation.set_apart(url, reason)
        IN_ROTATION.labels(url).set(0)

    async def put_back(self, url: str) -> None:
        if url in await self.rotation.apart():
            log.info("node_back_in_rotation", node=url)
            await self.rotation.put_back(url)
        IN_ROTATION.labels(url).set(1)
