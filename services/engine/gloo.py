"""The receiving end of a weight transfer over gloo: the trainer is rank 0, hosts the store and broadcasts.

The trainer's side is `ProcessGroupGloo(PrefixStore("reef", TCPStore(host, port, world_size, is_master=True)), 0,
world_size, timeout)` and one `broadcast` from rank 0 per tensor, in the order announced to `/update_weights`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]  # torch's stubs leave the stores out
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)

from services.engine.domain.errors import WeightTransferError

STORE_PREFIX = "reef"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where to meet. All waits are bounded by `timeout_s`."""

    host: str
    port: int
    rank: int
    world_size: int
    timeout_s: float


class GlooReceiver:
    """A process group of its own, apart from torch's default one, so that a dead trainer can be followed by a new one."""

    def __init__(self, group: Any, timeout_s: float) -> None:
        self._group = group
        self.timeout_s = timeout_s

    @classmethod
    def join(cls, meeting: Rendezvous) -> "GlooReceiver":
        """Blocks until all ranks have come. Raises `WeightTransferError`."""
        timeout = timedelta(seconds=meeting.timeout_s)
        try:
            store = TCPStore(
                meeting.host,
                meeting.port,
                meeting.world_size,
                is_master=False,
                timeout=timeout,
                wait_for_workers=False,
            )
            group = ProcessGroupGloo(
                PrefixStore(STORE_PREFIX, store), meeting.rank, meeting.world_size, timeout
            )
        except RuntimeError as error:
            raise WeightTransferError(f"the rendezvous with the trainer failed: {error}") from error
        return cls(group, meeting.timeout_s)

    def receive(self, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """The next tensor that rank 0 broadcasts. Blocks; raises `WeightTransferError`."""
        tensor = torch.empty(tuple(shape), dtype=dtype)
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = timedelta(seconds=self.timeout_s)
        try:
            self._group.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise WeightTransferError(
                f"the transfer from the trainer broke off: {error}"
            ) from error
        return tensor
