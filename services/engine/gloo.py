"""The receiving end of a weight transfer over gloo."""
# The trainer is rank 0 and hosts the store: PrefixStore("reef", TCPStore(host, port, world_size,
# is_master=True)). It broadcasts the tensors in the order that /update_weights announces.

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

# torch's stubs leave the stores out.
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)

from services.engine.domain.errors import WeightTransferError

STORE_PREFIX = "reef"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Address of the trainer's store. `timeout_s` bounds every wait."""

    host: str
    port: int
    rank: int
    world_size: int
    timeout_s: float


class GlooReceiver:
    """Membership in the trainer's process group."""

    # Not torch's default group, which cannot be made again after a trainer has died.

    def __init__(self, group: Any, timeout_s: float) -> None:
        self._group = group
        self.timeout_s = timeout_s

    @classmethod
    def join(cls, meeting: Rendezvous) -> "GlooReceiver":
        """Wait for all ranks. Blocks. Raises `WeightTransferError`."""
        timeout = timedelta(seconds=meeting.timeout_s)
        try:
            place = meeting.host, meeting.port, meeting.world_size
            store = TCPStore(*place, is_master=False, timeout=timeout, wait_for_workers=False)
            prefixed = PrefixStore(STORE_PREFIX, store)
            group = ProcessGroupGloo(prefixed, meeting.rank, meeting.world_size, timeout)
        except RuntimeError as error:
            raise WeightTransferError(f"the rendezvous with the trainer failed: {error}") from error
        return cls(group, meeting.timeout_s)

    def receive(self, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """The next tensor from rank 0. Blocks. Raises `WeightTransferError`."""
        tensor = torch.empty(tuple(shape), dtype=dtype)
        options = BroadcastOptions()
        options.timeout = timedelta(seconds=self.timeout_s)
        try:
            self._group.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise WeightTransferError(f"the trainer's transfer broke off: {error}") from error
        return tensor
