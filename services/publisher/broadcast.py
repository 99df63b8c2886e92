"""The sender of full weights: a process, so that the publisher never imports torch."""

#     python -m services.publisher.broadcast <directory> <host> <world size> <seconds> gloo|nccl
#
# It hosts the store, prints its port, waits for the node's ranks, and broadcasts each tensor from
# rank 0 in the order of names: with gloo between CPUs, with NCCL between GPUs. It exits with 0
# after the last tensor.

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from services.publisher.weight_files import WeightFiles

STORE_PREFIX = "reef"


def group_of(way: str, store: Any, world_size: int, timeout: timedelta) -> Any:
    from torch import distributed

    if way == "nccl":
        return distributed.ProcessGroupNCCL(
            store, 0, world_size, distributed.ProcessGroupNCCL.Options()
        )
    return distributed.ProcessGroupGloo(store, 0, world_size, timeout)


def main() -> None:
    """Send a checkpoint to a node. <seconds> is the limit of each collective call."""
    directory, host, world_size, seconds, way = sys.argv[1:6]
    import torch
    from safetensors import safe_open
    from torch.distributed import (  # type: ignore[attr-defined]
        BroadcastOptions,
        PrefixStore,
        TCPStore,
    )

    torch.set_num_threads(1)
    timeout, device = timedelta(seconds=float(seconds)), "cuda" if way == "nccl" else "cpu"
    files = WeightFiles.read(Path(directory))
    store = TCPStore(
        host, 0, int(world_size), is_master=True, timeout=timeout, wait_for_workers=False
    )
    sys.stdout.write(f"{store.port}\n")
    sys.stdout.flush()
    group = group_of(way, PrefixStore(STORE_PREFIX, store), int(world_size), timeout)
    opened: dict[Path, Any] = {
        file: safe_open(file, "pt") for file in {tensor.file for tensor in files.tensors.values()}
    }
    options = BroadcastOptions()
    options.timeout = timeout
    for name, tensor in files.tensors.items():
        group.broadcast([opened[tensor.file].get_tensor(name).to(device)], options).wait()
    if way == "nccl":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
