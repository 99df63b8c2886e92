"""How the process gets and gives back memory, set once at its start."""

import ctypes
import gc

LARGE_BYTES = 128 * 1024
_M_MMAP_THRESHOLD = -3


def set_up() -> None:
    """For many small objects that live for one exchange, and a few large blocks that come and go.

    glibc would let its threshold for blocks that are mapped each for itself grow with what is freed. Then large bodies, which stay, fill
    the holes that decoding leaves, and the process grows to several times of what its requests hold.
    """
    # An exchange is many small objects without cycles: looking for cycles after every 700 of them finds nothing.
    gc.freeze()
    gc.set_threshold(25_000, 20, 20)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
