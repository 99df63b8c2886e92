"""The trainer's end of a weight transfer: hosts the store, then broadcasts tensors as rank 0.

Run as `python trainer_process.py <port> <file.safetensors> <how many tensors>`; prints `hosting` once the store is up,
and `sent` when that many tensors are out. With fewer than all it then exits, as a trainer that dies would.
"""

import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore


def send(port: int, weights: Path, count: int, hosting: threading.Event | None = None) -> None:
    timeout = timedelta(seconds=20)
    store = TCPStore("127.0.0.1", port, 2, is_master=True, timeout=timeout, wait_for_workers=False)
    if hosting:
        hosting.set()
    sys.stdout.write("hosting\n")
    sys.stdout.flush()
    group = ProcessGroupGloo(PrefixStore("reef", store), 0, 2, timeout)
    for _, tensor in sorted(load_file(weights).items())[:count]:
        group.broadcast([tensor], BroadcastOptions()).wait()
    sys.stdout.write("sent\n")
    sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    send(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
