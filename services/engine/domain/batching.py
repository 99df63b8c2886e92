"""Scheduling rules: admission, prompt chunks, dense rows."""

from collections.abc import Iterable, Sequence


def admissible_count(waiting: Sequence[int], free_rows: int) -> int:
    """Count the requests at the queue's front that fit; `waiting` holds rows per request."""
    # First come, first served. If a small request could overtake a large request, the large request
    # could wait for ever.
    count = 0
    for rows in waiting:
        if rows > free_rows:
            break
        free_rows -= rows
        count += 1
    return count


def joint_prompt_count(lengths: Iterable[int], budget: int, limit: int) -> int:
    """Count the prompts at the front that one forward reads, padded to the longest."""
    # A matrix product over a few hundred tokens costs half per token of what it costs over a few
    # dozen.
    count = longest = 0
    for length in lengths:
        longest = max(longest, length)
        if count == limit or longest * (count + 1) > budget:
            break
        count += 1
    return count


def chunk_end(done: int, total: int, budget: int) -> int:
    """End of the next chunk of a prompt, at least one token after `done`."""
    return min(total, done + max(1, budget))


def closing_moves(size: int, leaving: Iterable[int]) -> list[tuple[int, int]]:
    """Moves `(from, to)` after which the rows that stay are 0..k-1."""
    # Attention reads dense rows as a slice of the cache, without a gathered copy.
    gone = set(leaving)
    kept = size - len(gone)
    holes = sorted(row for row in gone if row < kept)
    movers = [row for row in range(kept, size) if row not in gone]
    return list(zip(movers, holes, strict=True))
