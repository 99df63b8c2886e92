"""The random numbers that choose tokens."""

import hashlib
import struct


def uniform(seed: int, stream: int, position: int) -> float:
    """Number `position` of a stream, in [0, 1), a function of the arguments.

    All streams, of equal or different seeds, are independent.
    """
    # Counter-based: a generator that is seeded with `seed + choice` would give choice 1 of seed 7
    # the numbers of choice 0 of seed 8, and then two answers count as two draws but are one.
    key = struct.pack("<QQQ", seed % 2**64, stream, position)
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
