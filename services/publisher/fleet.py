"""All serving nodes as one: a release is staged on every one of them, what is no longer resident leaves, what is missing comes back."""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
from prometheus_client import Gauge

from reefcommon.artifacts import BASE_CONTENT_ID, ArtifactStore, materialize
from reefcommon.errors import Poison, ReefError, Transient, Unavailable
from reefcommon.serving import WeightNode
from reefkit.redis_rotation import usable
from services.publisher.domain.releases import Wanted
from services.publisher.full_weights import SUSPECT, Checkpoint, FullWeights, WrongWeights, label

log = structlog.get_logger()

IN_ROTATION = Gauge("reef_node_in_rotation", "1 while a serving node is in rotation", ["node"])


class Rotation(Protocol):
    """Which nodes are set apart, as others see it."""

    async def set_apart(self, url: str, reason: str) -> None:
        """Take a node out."""

    async def put_back(self, url: str) -> None:
        """Put a node back."""

    async def apart(self) -> dict[str, str]:
        """Nodes that are out, each with the reason."""


Loaded = Mapping[str, set[str] | Unavailable]
"""By node, the names that it serves now, or that it does not answer."""


class Refused(Poison):
    """A node says no to this release for good, or answers with something else than it was asked for."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What is wanted, with its files on the disk that the nodes see. `checkpoint`: None where no node needs other base weights."""

    wanted: Wanted
    adapter_path: Path | None = None
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes, the store that weights come from, and the directory in which every node sees them.

    `full`: how full weights reach the nodes; None where they do not, and then nobody looks at the nodes' base weights.
    """

    nodes: tuple[WeightNode, ...]
    store: ArtifactStore
    staging: Path
    base_model: str
    rotation: Rotation
    stage_within_s: float = 60.0
    full: FullWeights | None = None
    base_path: Path | None = None

    async def stage(self, scenario: str, wanted: Wanted) -> dict[str, float]:
        """Have the nodes in rotation load and prove what a release needs. Milliseconds by node that holds it.

        A node that does not answer is set apart and not waited for.

        Raises:
            Refused: a node answered the probe with another model, or no node takes it.
            Unavailable: no node answers.
        """
        apart = await self.rotation.apart()
        urls = usable([node.url for node in self.nodes], apart)
        chosen = [node for node in self.nodes if node.url in urls]
        staged = await self._prepared(scenario, wanted, chosen)
        results = await asyncio.gather(*(self._try(node, staged) for node in chosen))
        held = {
            node.url: result
            for node, result in zip(chosen, results, strict=True)
            if isinstance(result, float)
        }
        failed = {
            node.url: result
            for node, result in zip(chosen, results, strict=True)
            if not isinstance(result, float)
        }
        wrong = [error for error in failed.values() if isinstance(error, WrongModel | WrongWeights)]
        if wrong:
            raise wrong[0]
        if held:
            for url, error in failed.items():
                await self.set_apart(url, str(error))
            return held
        what = wanted.adapter or (
            self.base_model if wanted.base == BASE_CONTENT_ID else wanted.base
        )
        reasons = "; ".join(
            f"{error} ({apart[url]})" if url in apart else str(error)
            for url, error in failed.items()
        )
        if any(isinstance(error, Transient) for error in failed.values()) or not failed:
            raise Unavailable(f"no serving node took {what}: {reasons or 'none is configured'}")
        raise Refused(f"every serving node refused {what}: {reasons}")

    async def fetch(self, scenario: str, content_id: str) -> Path:
        """The verified files of a content where every node can read them."""
        return await asyncio.to_thread(
            materialize, self.store, content_id, scenario, self.staging.resolve()
        )

    async def _prepared(
        self, scenario: str, wanted: Wanted, nodes: Collection[WeightNode]
    ) -> Staged:
        """Fetch what is wanted. Full weights are read only where a node serves other ones: they may be large."""
        path = await self.fetch(scenario, wanted.lora) if wanted.lora else None
        bases = [
            base
            for base in await asyncio.gather(*(self._base(node) for node in nodes))
            if isinstance(base, str)
        ]
        checkpoint = None
        if any(base != wanted.base for base in bases):
            try:
                checkpoint = await self.checkpoint(scenario, wanted.base)
            except Refused:
                if wanted.base not in bases:
                    raise
        return Staged(wanted, path, checkpoint)

    async def checkpoint(self, scenario: str, content_id: str) -> Checkpoint:
        """Full weights, read and digested. Raises Refused where this deployment cannot move them."""
        if self.full is None:
            raise Refused(
                "full weights reach the nodes by weight transfer, which REEF_PUBLISHER_WEIGHT_TRANSFER=off forbids"
            )
        if content_id != BASE_CONTENT_ID:
            return await Checkpoint.read(content_id, await self.fetch(scenario, content_id))
        if self.base_path is None:
            raise Refused(
                "the base model's weights are needed again: set REEF_MODEL_PATH, the directory that the nodes were started with"
            )
        return await Checkpoint.read(content_id, self.base_path)

    async def _base(self, node: WeightNode) -> str | ReefError:
        try:
            return await self.base(node)
        except ReefError as error:
            return error

    async def base(self, node: WeightNode) -> str:
        """The content of a node's base weights; empty where it is paused or an update failed: nobody knows how far that had come."""
        if self.full is None:
            return BASE_CONTENT_ID
        if (await self.rotation.apart()).get(node.url, "").startswith(SUSPECT):
            return ""
        return "" if await node.is_paused() else label((await node.weights()).version)

    async def being_replaced(self, node: WeightNode) -> bool:
        """Whether a publisher replaces its weights at this moment."""
        return self.full is not None and await self.full.leases.leased(node.url)

    async def _try(self, node: WeightNode, staged: Staged) -> float | ReefError:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self.stage_within_s):
                if await self.base(node) != staged.wanted.base:
                    await self.replace(node, staged)
                await self.hold(node, staged.wanted, staged.adapter_path)
        except ReefError as error:
            return error
        except TimeoutError:
            return Unavailable(
                f"{node.url} took longer than {self.stage_within_s:g} s to load and answer"
            )
        return (time.perf_counter() - started) * 1000

    async def replace(self, node: WeightNode, staged: Staged) -> None:
        """Base weights, on a node that serves other ones. Raises what FullWeights.replace does."""
        if self.full is None or staged.checkpoint is None:
            raise Unavailable(
                f"{node.url} came back with other weights than {staged.wanted.base}, or is paused"
            )
        await self.full.replace(node, staged.checkpoint, self.set_apart)
        if node.url in await self.rotation.apart():
            await self.rotation.set_apart(
                node.url, f"{node.url} has the weights {staged.wanted.base} now, and is to be tried"
            )

    async def hold(self, node: WeightNode, wanted: Wanted, path: Path | None) -> None:
        """Load on one node, and prove by one token that it serves it. Raises WrongModel where it is another."""
        if wanted.adapter is not None:
            await node.load_adapter(wanted.adapter, str(path))
        await self.probe(node, wanted)

    async def probe(self, node: WeightNode, wanted: Wanted) -> None:
        """One token of an adapter, or of the base model. Raises WrongModel where the node answers with another, or with other weights."""
        model = wanted.adapter or self.base_model
        answers = await node.chat(
            model, [{"role": "user", "content": "ping"}], max_tokens=1, temperature=0.0
        )
        found = answers[0].model if answers else "nothing"
        if found != model:
            raise WrongModel(f"{node.url} was asked for {model} and answered with {found}")
        version = answers[0].weight_version
        if (
            self.full is not None
            and wanted.adapter is None
            and version
            and label(version) != wanted.base
        ):
            raise WrongModel(
                f"{node.url} was asked for the weights {wanted.base} and answered with {version}"
            )

    async def restore(self, scenario: str, base: str, also: Collection[str]) -> None:
        """Give the nodes back the base weights that the head needs, where they serve neither these nor one of `also`.

        A node that fails is set apart; upkeep tries it again.
        """
        bases = await asyncio.gather(*(self._base(node) for node in self.nodes))
        wrong = [
            node
            for node, found in zip(self.nodes, bases, strict=True)
            if isinstance(found, str) and found not in {base, *also}
        ]
        if not wrong:
            return
        staged = Staged(Wanted(base), checkpoint=await self.checkpoint(scenario, base))
        results = await asyncio.gather(*(self._try(node, staged) for node in wrong))
        for node, result in zip(wrong, results, strict=True):
            if isinstance(result, ReefError):
                await self.set_apart(node.url, str(result))

    async def unload(self, node: WeightNode, names: list[str]) -> bool:
        """Unload from one node. A refusal sets this node apart, in the node's own words; the others are tried all the same."""
        refusal = ""
        for name in names:
            try:
                await node.unload_adapter(name)
                log.info("adapter_unloaded", node=node.url, adapter=name)
            except (Transient, Poison) as error:
                refusal = str(error)
        if refusal:
            await self.set_apart(node.url, refusal)
        return not refusal

    async def loaded(self) -> "Loaded":
        """What every node serves now, or that it does not answer."""
        found = await asyncio.gather(*(self._models(node) for node in self.nodes))
        return dict(zip((node.url for node in self.nodes), found, strict=True))

    async def _models(self, node: WeightNode) -> set[str] | Unavailable:
        try:
            return set(await node.models())
        except (Transient, Poison) as error:
            return error if isinstance(error, Unavailable) else Unavailable(str(error))

    async def set_apart(self, url: str, reason: str) -> None:
        """Take a node out of rotation, once. That an update of its weights failed is not forgotten over a later reason."""
        known = (await self.rotation.apart()).get(url, "")
        if known != reason and not known.startswith(SUSPECT):
            log.warning("node_set_apart", node=url, reason=reason)
            await self.rotation.set_apart(url, reason)
        IN_ROTATION.labels(url).set(0)

    async def put_back(self, url: str) -> None:
        """Put a node back into rotation, once."""
        if url in await self.rotation.apart():
            log.info("node_back_in_rotation", node=url)
            await self.rotation.put_back(url)
        IN_ROTATION.labels(url).set(1)


class WrongModel(Refused):
    """The probe was answered by another model: nothing may be published that cannot be shown to serve."""
