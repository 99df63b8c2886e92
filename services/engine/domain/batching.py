"""Scheduling rules: admission, prompts read together, dense rows."""

from collections.abc import Iterable
from itertools import accumulate

# All rows are as long as the longest (`kv.py`): so many tokens for each row that there may be.
ROW_TOKENS = 2048

Shape = tuple[int, int]
"""Rows, and the tokens that each of them may come to."""


def admissible_count(waiting: Iterable[Shape], running: Shape, max_rows: int) -> int:
    """Count the requests at the queue's front that fit beside those that run."""
    # First come, first served. If a small request could overtake a large request, the large request
    # could wait for ever.
    (rows, longest), count = running, 0
    for more, length in waiting:
        rows, longest, alone = rows + more, max(longest, length), not rows
        if rows > max_rows or (rows * longest > max_rows * ROW_TOKENS and not alone):
            break
        count += 1
    return count


def joint_prompt_count(lengths: Iterable[int], budget: int) -> int:
    """Count the prompts at the front that one forward reads, padded to the longest."""
    # A matrix product over a few hundred tokens costs half per token of what it costs over a few
    # dozen.
    longest = accumulate(lengths, max)
    return sum(count * length <= budget for count, length in enumerate(longest, start=1))


def closing_moves(size: int, leaving: Iterable[int]) -> list[tuple[int, int]]:
    """Moves `(from, to)` after which the rows that stay are 0..k-1."""
    # Attention reads dense rows as a slice of the cache, without a gathered copy.
    gone = set(leaving)
    kept = size - len(gone)
    holes = sorted(row for row in gone if row < kept)
    movers = [row for row in range(kept, size) if row not in gone]
    return list(zip(movers, holes, strict=True))
