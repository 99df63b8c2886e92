"""Scheduling decisions: who joins the batch, how much prompt is read per step, how rows close up."""

from collections.abc import Iterable, Sequence


def admissible(waiting: Sequence[int], free_rows: int) -> int:
    """How many requests from the front of the queue fit; `waiting` holds the rows (choices) that each needs.

    Strictly first come, first served: a large request is not overtaken, so it cannot starve.
    """
    count = 0
    for rows in waiting:
        if rows > free_rows:
            break
        free_rows -= rows
        count += 1
    return count


def together(lengths: Iterable[int], budget: int, limit: int) -> int:
    """How many prompts from the front of the queue are read whole in one forward, each padded to the longest, within `budget` tokens.

    A matrix product over a few hundred tokens costs half per token of what it costs over a few dozen.
    """
    count = longest = 0
    for length in lengths:
        longest = max(longest, length)
        if count == limit or longest * (count + 1) > budget:
            break
        count += 1
    return count


def chunk_end(done: int, total: int, budget: int) -> int:
    """Where the next prefill chunk ends (at least one token further than `done`)."""
    return min(total, done + max(1, budget))


def closing_moves(size: int, leaving: Iterable[int]) -> list[tuple[int, int]]:
    """Moves `(from, to)` that make the rows that stay occupy 0..k-1, each moved at most once.

    Rows are kept dense so that attention reads a slice of the cache and never a gathered copy.
    """
    gone = set(leaving)
    kept = size - len(gone)
    holes = sorted(row for row in gone if row < kept)
    movers = [row for row in range(kept, size) if row not in gone]
    return list(zip(movers, holes, strict=True))
