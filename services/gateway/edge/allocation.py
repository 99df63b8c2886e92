"""The memory allocator of the process, set once at its start."""

import ctypes
import gc

LARGE_BYTES = 128 * 1024
_M_MMAP_THRESHOLD = -3


def set_up() -> None:
    # glibc would raise its threshold for blocks that are mapped on their own with each that is
    # freed. Large bodies would then fill the holes that decoding leaves, and the process would grow
    # to several times its load.
    # An exchange makes many small objects without cycles: a search after every 700 is waste.
    gc.freeze()
    gc.set_threshold(25_000, 20, 20)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
