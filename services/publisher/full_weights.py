"""Full weights onto one node: pause, start, transfer, finish, verify, resume. Each step has a deadline, and resume comes whatever happens.

    lease -> sender ready -> pause -> start -> transfer -> finish -> forget prefixes -> verify -> resume -> return the lease

Requests wait meanwhile and lose nothing. A node that fails is set apart before it goes on, and is not waited for.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import structlog
from prometheus_client import Histogram

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.errors import Poison, ReefError, Transient, Unavailable
from reefcommon.serving import WeightNode
from services.publisher.weight_files import WeightFiles, differing

log = structlog.get_logger()

PAUSED_S = Histogram(
    "reef_node_paused_seconds",
    "time that a node made no step while its weights were replaced",
    ["node"],
)
RESUME_ATTEMPTS = 3
SUSPECT = "full weights: "
"""How the reason begins for which a node is set apart whose update failed: whatever it says that it serves, it is given weights anew."""

Way = Literal["path", "gloo", "nccl"]
SetApart = Callable[[str, str], Awaitable[None]]


class WrongWeights(Poison):
    """A node serves other weights than it was given."""


class Leases(Protocol):
    """Who may replace a node's weights."""

    def lease(self, url: str, *, wait_s: float) -> AbstractAsyncContextManager[None]:
        """Nobody else does during the block. Raises Unavailable."""

    async def leased(self, url: str) -> bool:
        """Whether somebody does now."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a node is to serve: a content's name, its files, and the digest of every tensor."""

    content_id: str
    files: WeightFiles
    digests: dict[str, str]

    @classmethod
    async def read(cls, content_id: str, directory: Path) -> "Checkpoint":
        """Reads every byte, in a thread. Raises Poison where there are no weights."""
        files = await asyncio.to_thread(WeightFiles.read, directory)
        return cls(content_id, files, await asyncio.to_thread(files.digests))


@dataclass(frozen=True, slots=True)
class FullWeights:
    """How weights reach the nodes. `way`: from a path that the node sees too, or by torch.distributed over gloo or NCCL."""

    way: Way
    host: str
    step_within_s: float
    leases: Leases

    async def replace(self, node: WeightNode, given: Checkpoint, set_apart: SetApart) -> None:
        """Have the node serve these weights. Afterwards it steps again, or is out of rotation.

        Raises:
            WrongWeights: it serves others than it was given.
            Poison: it refuses them.
            Unavailable: it does not answer in time, or another publisher replaces its weights.
        """
        async with (
            self.leases.lease(node.url, wait_s=self.step_within_s),
            self._sender(node, given) as send,
        ):
            started = time.perf_counter()
            try:
                await self._step("pause", node, node.pause(timeout_s=self.step_within_s))
                await self._step("start", node, node.start_update(timeout_s=self.step_within_s))
                await self._step("transfer", node, send())
                await self._step(
                    "finish",
                    node,
                    node.finish_update(given.content_id, timeout_s=self.step_within_s),
                )
                await self._step(
                    "forget prefixes", node, node.reset_prefix_cache(timeout_s=self.step_within_s)
                )
                await self._step("verify", node, self._verify(node, given))
            except ReefError as error:
                await set_apart(node.url, SUSPECT + str(error))
                raise
            finally:
                await self._resume(node, set_apart)
                PAUSED_S.labels(node.url).observe(time.perf_counter() - started)
        log.info(
            "weights_replaced",
            node=node.url,
            content=given.content_id,
            paused_ms=round((time.perf_counter() - started) * 1000, 1),
        )

    async def _step(self, name: str, node: WeightNode, effect: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self.step_within_s):
                await effect
        except TimeoutError:
            raise Unavailable(
                f"{node.url} took longer than {self.step_within_s:g} s to {name} (full weights)"
            ) from None

    async def _verify(self, node: WeightNode, given: Checkpoint) -> None:
        found = await node.weights(tensors=True, timeout_s=self.step_within_s)
        if found.version != given.content_id:
            raise WrongWeights(
                f"{node.url} was given the weights {given.content_id} and says that it serves {found.version or 'none'}"
            )
        if found.tensors and (wrong := differing(given.digests, dict(found.tensors))):
            raise WrongWeights(
                f"{node.url} serves {given.content_id} with {len(wrong)} tensors that differ: {', '.join(wrong[:3])}"
            )

    async def _resume(self, node: WeightNode, set_apart: SetApart) -> None:
        """Tried several times: a node that stays paused answers nobody, so it is out of rotation until it has been resumed."""
        resumed, reason = False, ""
        try:
            for _ in range(RESUME_ATTEMPTS):
                try:
                    await self._step("resume", node, node.resume(timeout_s=self.step_within_s))
                except (Transient, Poison) as error:
                    reason = str(error)
                else:
                    resumed = True
                    return
            raise Unavailable(f"{node.url} does not resume: {reason}")
        finally:
            if not resumed:
                log.error("node_not_resumed", node=node.url, reason=reason)
                await set_apart(node.url, f"{SUSPECT}it does not resume: {reason}")

    @asynccontextmanager
    async def _sender(
        self, node: WeightNode, given: Checkpoint
    ) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """What moves the weights, made ready before the node is paused."""
        if self.way == "path":
            yield lambda: node.update(
                {"weights_path": str(given.files.directory)}, timeout_s=self.step_within_s
            )
            return
        world_size = 1 + await node.world_size()
        async with broadcasting(
            self.way, given.files.directory, self.host, world_size, self.step_within_s
        ) as port:

            async def send() -> None:
                await node.meet(self.host, port, world_size, timeout_s=self.step_within_s)
                await node.update(given.files.announcement(), timeout_s=self.step_within_s)

            yield send


@asynccontextmanager
async def broadcasting(
    way: Way, directory: Path, host: str, world_size: int, within_s: float
) -> AsyncIterator[int]:
    """A sender process that hosts the meeting at the given port, and ends with the block. Raises Unavailable where it does not start."""
    arguments = (
        "-m",
        "services.publisher.broadcast",
        str(directory),
        host,
        str(world_size),
        f"{within_s:g}",
        way,
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        try:
            async with asyncio.timeout(within_s):
                line = await child.stdout.readline()
        except TimeoutError:
            raise Unavailable(
                f"the sender of full weights was not ready within {within_s:g} s"
            ) from None
        if not line.strip().isdigit():
            words = (await child.stderr.read()).decode(errors="replace").strip().splitlines()
            raise Unavailable(
                f"the sender of full weights did not start: {words[-1] if words else 'it said nothing'}"
            )
        yield int(line)
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


def label(version: str) -> str:
    """The content that a node's version names. A version that is no content of ours is that of what the node was started with."""
    return version if version.startswith("checkpoint-") else BASE_CONTENT_ID
