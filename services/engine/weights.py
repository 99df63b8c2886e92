"""New base weights, put in place between two steps."""
# No step ever uses half-updated weights, and a trainer that dies changes nothing.

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from services.engine.domain.errors import WeightTransferError, WeightUpdateError
from services.engine.gloo import GlooReceiver, Rendezvous
from services.engine.loop import GenerationLoop

log = structlog.get_logger(__name__)
DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to come, under its Hugging Face name."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightSync:
    """State of the update routes: rendezvous, start, transfers, finish. Calls are serialised."""

    def __init__(self, model: nn.Module, loop: GenerationLoop) -> None:
        # state_dict has tied weights under both names; both lead to the one live tensor.
        self._live: dict[str, Tensor] = dict(model.state_dict())
        self._loop = loop
        self._busy = asyncio.Lock()
        self._receiver: GlooReceiver | None = None
        self._staged: dict[str, Tensor] | None = None
        self._digests: dict[str, str] | None = None

    @property
    def parameters(self) -> int:
        """Number of weights; tied weights count once."""
        return sum({t.data_ptr(): t.numel() for t in self._live.values()}.values())

    async def connect(self, meeting: Rendezvous) -> None:
        """Meet the trainer and drop an earlier connection. Raises `WeightTransferError`."""
        async with self._busy:
            self._receiver = None
            self._receiver = await asyncio.to_thread(GlooReceiver.join, meeting)
        log.info("weight_transfer_connected", meeting=meeting)

    async def start(self) -> None:
        """Begin an update; drop the tensors of an unfinished update."""
        async with self._busy:
            self._staged = {}

    async def receive(self, specs: Sequence[TensorSpec], timeout_s: float | None) -> None:
        """Take tensors from the trainer. Raises `WeightUpdateError`, `WeightTransferError`."""
        async with self._busy:
            staged = self._started()
            if self._receiver is None:
                raise WeightUpdateError("no trainer: call /init_weight_transfer_engine first")
            for spec in specs:
                self._check(spec.name, spec.shape)
            receiver = self._receiver
            receiver.timeout_s = timeout_s or receiver.timeout_s
            try:
                staged |= await asyncio.to_thread(_receive_all, receiver, specs)
            except WeightTransferError:
                self._receiver, self._staged = None, None
                raise

    async def read(self, path: Path) -> None:
        """Take tensors from a safetensors file or directory. Raises `WeightUpdateError`."""
        async with self._busy:
            staged = self._started()
            tensors = await asyncio.to_thread(_read_all, path)
            for name, tensor in tensors.items():
                self._check(name, tuple(tensor.shape))
            staged |= tensors

    async def finish(self, version: str) -> None:
        """Put the collected weights in place and name them, also during a pause."""
        async with self._busy:
            staged = self._started()
            if not staged:
                raise WeightUpdateError("nothing was transferred since /start_weight_update")
            await asyncio.to_thread(_check_finite, staged)
            await asyncio.wrap_future(self._loop.call(lambda: self._put_in_place(staged, version)))
            self._staged = None
        log.info("weights_updated", version=version, tensors=len(staged))

    async def rename(self, version: str) -> None:
        """Change the name of the version only."""
        async with self._busy:
            await asyncio.wrap_future(self._loop.call(lambda: self._name(version)))

    async def digests(self) -> dict[str, str]:
        """SHA-256 of each weight's float32 bytes; tied weights under each name."""
        async with self._busy:
            if self._digests is None:
                self._digests = await asyncio.to_thread(_digests, self._live)
            return self._digests

    async def checksum(self) -> str:
        """SHA-256 over name and digest of all weights."""
        lines = (f"{name} {one}\n" for name, one in (await self.digests()).items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def _started(self) -> dict[str, Tensor]:
        if self._staged is None:
            raise WeightUpdateError("no update is in progress: call /start_weight_update first")
        return self._staged

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        live = self._live.get(name)
        if live is None:
            raise WeightUpdateError(f"the model has no weight {name!r}")
        if tuple(live.shape) != shape:
            raise WeightUpdateError(f"weight {name!r} has shape {tuple(live.shape)}, not {shape}")

    def _put_in_place(self, staged: dict[str, Tensor], version: str) -> None:
        with torch.no_grad():
            for name, tensor in staged.items():
                self._live[name].copy_(tensor)
        self._digests = None
        self._name(version)

    def _name(self, version: str) -> None:
        self._loop.version = version


def _receive_all(receiver: GlooReceiver, specs: Sequence[TensorSpec]) -> dict[str, Tensor]:
    return {spec.name: receiver.receive(spec.dtype, spec.shape) for spec in specs}


def _check_finite(staged: dict[str, Tensor]) -> None:
    for name, tensor in staged.items():
        if not bool(tensor.to(torch.float32).isfinite().all()):
            raise WeightUpdateError(f"weight {name!r} has numbers that are not finite")


def torch_dtype(name: str) -> torch.dtype:
    """A dtype by its name. Raises `WeightUpdateError`."""
    plain = name.removeprefix("torch.")
    if plain not in DTYPES:
        raise WeightUpdateError(f"dtype {name!r} cannot be transferred; use one of {DTYPES}")
    dtype: torch.dtype = getattr(torch, plain)
    return dtype


def _read_all(path: Path) -> dict[str, Tensor]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    tensors: dict[str, Tensor] = {}
    try:
        for file in files:
            # Not mapped: the file may be rewritten before the update is finished.
            tensors |= load_file(file, backend="pread")
    except (OSError, SafetensorError) as error:
        raise WeightUpdateError(f"weights at {path} cannot be read: {error}") from error
    if not tensors:
        raise WeightUpdateError(f"there are no safetensors files at {path}")
    return tensors


def _digests(live: dict[str, Tensor]) -> dict[str, str]:
    seen: dict[int, str] = {}
    digests: dict[str, str] = {}
    for name in sorted(live):
        tensor = live[name].detach()
        if tensor.data_ptr() not in seen:
            seen[tensor.data_ptr()] = hashlib.sha256(tensor.contiguous().numpy().data).hexdigest()
        digests[name] = seen[tensor.data_ptr()]
    return digests
