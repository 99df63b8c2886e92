"""All serving nodes as one: a release is staged on every one of them, what is no longer resident leaves, what is missing comes back."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
from prometheus_client import Gauge

from reefcommon.artifacts import ArtifactStore, materialize
from reefcommon.errors import Poison, ReefError, Transient, Unavailable
from reefcommon.rotation import usable
from reefcommon.serving import ServingNode

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
class Fleet:
    """The nodes, the store that adapters come from, and the directory in which every node sees them."""

    nodes: tuple[ServingNode, ...]
    store: ArtifactStore
    staging: Path
    base_model: str
    rotation: Rotation
    stage_within_s: float = 60.0

    async def stage(self, scenario: str, weights: tuple[str, str] | None) -> dict[str, float]:
        """Have the nodes in rotation load and prove (adapter, content); None: prove the base model. Milliseconds by node that holds it.

        A node that does not answer is set apart and not waited for.

        Raises:
            Refused: a node answered the probe with another model, or no node takes it.
            Unavailable: no node answers.
        """
        path = await self.fetch(scenario, weights[1]) if weights else None
        apart = await self.rotation.apart()
        wanted = usable([node.url for node in self.nodes], apart)
        chosen = [node for node in self.nodes if node.url in wanted]
        name = weights[0] if weights else None
        results = await asyncio.gather(*(self._try(node, name, path) for node in chosen))
        held = {node.url: result for node, result in zip(chosen, results, strict=True) if isinstance(result, float)}
        failed = {node.url: result for node, result in zip(chosen, results, strict=True) if not isinstance(result, float)}
        wrong = [error for error in failed.values() if isinstance(error, WrongModel)]
        if wrong:
            raise wrong[0]
        if held:
            for url, error in failed.items():
                await self.set_apart(url, str(error))
            return held
        reasons = "; ".join(f"{error} ({apart[url]})" if url in apart else str(error) for url, error in failed.items())
        if any(isinstance(error, Transient) for error in failed.values()) or not failed:
            raise Unavailable(f"no serving node took {name or self.base_model}: {reasons or 'none is configured'}")
        raise Refused(f"every serving node refused {name or self.base_model}: {reasons}")

    async def fetch(self, scenario: str, content_id: str) -> Path:
        """The verified files of a content where every node can read them."""
        return await asyncio.to_thread(materialize, self.store, content_id, scenario, self.staging.resolve())

    async def _try(self, node: ServingNode, name: str | None, path: Path | None) -> float | ReefError:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self.stage_within_s):
                await self.hold(node, name, path)
        except ReefError as error:
            return error
        except TimeoutError:
            return Unavailable(f"{node.url} took longer than {self.stage_within_s:g} s to load and answer")
        return (time.perf_counter() - started) * 1000

    async def hold(self, node: ServingNode, name: str | None, path: Path | None) -> None:
        """Load on one node, and prove by one token that it serves under this name. Raises WrongModel where it is another."""
        if name is not None:
            await node.load_adapter(name, str(path))
        await self.probe(node, name)

    async def probe(self, node: ServingNode, name: str | None) -> None:
        """One token of an adapter (None: of the base model). Raises WrongModel where the node answers with another."""
        model = name or self.base_model
        answers = await node.chat(model, [{"role": "user", "content": "ping"}], max_tokens=1, temperature=0.0)
        found = answers[0].model if answers else "nothing"
        if found != model:
            raise WrongModel(f"{node.url} was asked for {model} and answered with {found}")

    async def unload(self, node: ServingNode, names: list[str]) -> bool:
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

    async def _models(self, node: ServingNode) -> set[str] | Unavailable:
        try:
            return set(await node.models())
        except (Transient, Poison) as error:
            return error if isinstance(error, Unavailable) else Unavailable(str(error))

    async def set_apart(self, url: str, reason: str) -> None:
        """Take a node out of rotation, once."""
        if (await self.rotation.apart()).get(url) != reason:
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
