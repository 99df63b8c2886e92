"""A frozen executor without a model: six counts of circles become a whole row pattern."""

from recipes.ttt_discover.archive import Node
from recipes.ttt_discover.examples.row_pattern.pattern import DIGITS, HEIGHTS, SHIFTS

_AT_RIGHT = SHIFTS.index(0.25)


def execute(guidance: str, parent: Node) -> str:  # noqa: ARG001 - whole constructions, not edits
    """Return the digits of the pattern that has `guidance` as the counts of its rows."""
    counts = [int(digit) for digit in guidance]
    mean = sum(counts) / len(counts)
    rows, shift = [], 0
    for place, count in enumerate(counts):
        # Rows of equal counts stand in each other's gaps; rows of few circles are taller.
        equal = place > 0 and counts[place - 1] == count
        shift = _AT_RIGHT - shift if equal else 0
        height = min(range(len(HEIGHTS)), key=lambda i: abs(HEIGHTS[i] - mean / count))
        rows.append(f"{count}{DIGITS[shift]}{DIGITS[height]}")
    return "".join(rows)
