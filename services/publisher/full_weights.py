"""Full weights onto a node. Each step has a deadline; the node is always resumed."""

#     lease -> sender ready -> pause -> start -> transfer -> finish -> reset prefix cache -> verify
#     -> resume -> return the lease
#
# Requests wait meanwhile and lose nothing. A node that fails is set apart before it resumes.

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
from prometheus_client import Histogram

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.errors import Poison, ReefError, Transient, Unavailable
from reefcommon.serving import WeightNode, WrongModel
from reefkit.redis_lease import RedisLease
from services.publisher.settings import Settings
from services.publisher.weight_files import WeightFiles, differing

log = structlog.get_logger()

PAUSED_S = Histogram(
    "reef_node_paused_seconds", "time without a step while a node's weights were replaced", ["node"]
)
RESUME_ATTEMPTS = 3
SUSPECT = "full weights: "
"""Prefix of the reason for which a node with a failed update is set apart: whatever version it
states, it gets weights again."""

Way = Literal["path", "gloo", "nccl"]
SetApart = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Full weights: content id, files, and the digest of every tensor."""

    content_id: str
    files: WeightFiles
    digests: dict[str, str]

    @classmethod
    async def read(cls, content_id: str, directory: Path) -> "Checkpoint":
        files = await asyncio.to_thread(WeightFiles.read, directory)
        return cls(content_id, files, await asyncio.to_thread(files.digests))


@dataclass(frozen=True, slots=True)
class FullWeights:
    """Moves weights to nodes: by a shared path, or by torch.distributed."""

    way: Way
    host: str
    step_within_s: float
    sender_within_s: float
    lease: Callable[[str], RedisLease]

    @classmethod
    def of(cls, settings: Settings, lease: Callable[[str], RedisLease]) -> "FullWeights | None":
        """Build the way that the settings name; None for `off`."""
        if settings.weight_transfer == "off":
            return None
        within_s = settings.weight_step_within_s, settings.weight_sender_within_s
        return cls(settings.weight_transfer, settings.weight_transfer_host, *within_s, lease)

    async def replace(self, node: WeightNode, given: Checkpoint, set_apart: SetApart) -> None:
        """Have the node serve these weights. Afterwards it steps again, or is out of rotation.

        Raises:
            WrongModel: it serves others.
            Poison: it refuses them.
            Unavailable: it does not answer in time, or another publisher replaces its weights.
        """
        within_s = self.step_within_s
        held = self.lease(node.url).during(wait_s=within_s)
        async with held, self._sender(node, given) as send:
            started = time.perf_counter()
            try:
                await self._step("pause", node, node.pause(timeout_s=within_s))
                await self._step("start", node, node.start_update(timeout_s=within_s))
                await self._step("transfer", node, send())
                finishing = node.finish_update(given.content_id, timeout_s=within_s)
                await self._step("finish", node, finishing)
                resetting = node.reset_prefix_cache(timeout_s=within_s)
                await self._step("reset the prefix cache", node, resetting)
                await self._step("verify", node, self._verify(node, given))
            # If it is cancelled, too: a part of the weights may be there.
            except (ReefError, asyncio.CancelledError) as error:
                await set_apart(node.url, SUSPECT + (str(error) or "interrupted"))
                raise
            finally:
                await self._resume(node, set_apart)
                PAUSED_S.labels(node.url).observe(time.perf_counter() - started)
        paused_ms = round((time.perf_counter() - started) * 1000, 1)
        log.info("weights_replaced", node=node.url, content=given.content_id, paused_ms=paused_ms)

    async def _step(self, name: str, node: WeightNode, effect: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self.step_within_s):
                await effect
        except TimeoutError:
            late = f"{node.url} took longer than {self.step_within_s:g} s to {name}"
            raise Unavailable(f"{late} (full weights)") from None

    async def _verify(self, node: WeightNode, given: Checkpoint) -> None:
        found = await node.weights(tensors=True, timeout_s=self.step_within_s)
        if found.version != given.content_id:
            sent = f"{node.url} was sent the weights {given.content_id}"
            raise WrongModel(f"{sent} and says that it serves {found.version or 'none'}")
        if found.tensors and (wrong := differing(given.digests, dict(found.tensors))):
            some = f"{len(wrong)} tensors that differ: {', '.join(wrong[:3])}"
            raise WrongModel(f"{node.url} serves {given.content_id} with {some}")

    async def _resume(self, node: WeightNode, set_apart: SetApart) -> None:
        # A node that stays paused answers no request, so it is out of rotation until it resumes.
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
        finally:  # also if it is cancelled
            if not resumed:
                log.error("node_not_resumed", node=node.url, reason=reason)
                await set_apart(node.url, f"{SUSPECT}it does not resume: {reason}")

    @asynccontextmanager
    async def _sender(
        self, node: WeightNode, given: Checkpoint
    ) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        if self.way == "path":
            info = {"weights_path": str(given.files.directory)}
            yield lambda: node.update(info, timeout_s=self.step_within_s)
            return
        world_size = 1 + await node.world_size()
        limits = (world_size, self.step_within_s, self.sender_within_s)
        async with sending(self.way, self.host, given.files.directory, *limits) as port:

            async def send() -> None:
                await node.meet(self.host, port, world_size, timeout_s=self.step_within_s)
                await node.update(given.files.announcement(), timeout_s=self.step_within_s)

            yield send


@asynccontextmanager
async def sending(
    way: Way, host: str, directory: Path, world_size: int, step_within_s: float, within_s: float
) -> AsyncIterator[int]:
    """Yield the port of a sender's store. Raises Unavailable if it does not start `within_s`."""
    command = [sys.executable, "-m", "services.publisher.broadcast", str(directory), host]
    limits = [str(world_size), f"{step_within_s:g}", way]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, *limits, stdout=pipe, stderr=pipe)
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        try:
            async with asyncio.timeout(within_s):
                line = await child.stdout.readline()
        except TimeoutError:
            late = f"was not ready within {within_s:g} s"
            raise Unavailable(f"the sender of full weights {late}") from None
        if not line.strip().isdigit():
            words = (await child.stderr.read()).decode(errors="replace").strip().splitlines()
            reason = words[-1] if words else "it printed nothing"
            raise Unavailable(f"the sender of full weights did not start: {reason}")
        yield int(line)
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


def content_of(version: str) -> str:
    """Return the content of a node's version.

    An unknown version is that of the weights that the node started with.
    """
    return version if version.startswith("checkpoint-") else BASE_CONTENT_ID
