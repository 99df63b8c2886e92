"""Six rows of circles from 18 digits, and the best radii for their centres."""

# A digit is 2 to 7. Each row has three: the number of its circles, its shift to the side, its
# height. The radii are the optimum of a linear program, so that a construction is judged by its
# centres alone and no program of a model runs.

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from recipes.ttt_discover.examples.packing import Packing

ROWS = 6
DIGITS = "234567"
LENGTH = 3 * ROWS
SHIFTS = (0.0, -0.25, -0.125, 0.125, 0.25)
"""Of the distance between the circles of a row."""
HEIGHTS = (1.0, 0.6, 0.8, 1.2, 1.4)
"""Of a row, relative to the others."""
# The solver's answer may break a rule by so much. Smaller radii keep every rule.
_SLACK = 1e-9

Center = tuple[float, float]


def canonical(digits: str) -> str:
    """Return the digits with equal constructions written alike: a sixth choice is the first."""
    folded = (
        digit if place % 3 == 0 else DIGITS[_choice(digit)] for place, digit in enumerate(digits)
    )
    return "".join(folded)


def centers_of(digits: str, count: int) -> list[Center] | None:
    """Return the first `count` centres from the bottom; None if the rows have fewer."""
    rows = [digits[at : at + 3] for at in range(0, LENGTH, 3)]
    heights = [HEIGHTS[_choice(row[2])] for row in rows]
    total, floor = sum(heights), 0.0
    centers: list[Center] = []
    for row, height in zip(rows, heights, strict=True):
        circles, shift = int(row[0]), SHIFTS[_choice(row[1])]
        y = (floor + height / 2) / total
        centers += [((place + 0.5 + shift) / circles, y) for place in range(circles)]
        floor += height
    return centers[:count] if len(centers) >= count else None


def best_radii(centers: Sequence[Center]) -> list[float]:
    """Return the radii with the greatest sum of disjoint circles at these centres."""
    places = np.array(centers)
    walls = np.minimum(places, 1 - places).min(axis=1)
    first, second = np.triu_indices(len(places), 1)
    distance = np.hypot(*(places[first] - places[second]).T)
    # A pair that the walls keep apart needs no row.
    close = distance < walls[first] + walls[second]
    first, second, distance = first[close], second[close], distance[close]
    pairs = np.arange(len(distance))
    rows, columns = np.concatenate([pairs, pairs]), np.concatenate([first, second])
    table = coo_array((np.ones(len(rows)), (rows, columns)), (len(pairs), len(places)))
    found = linprog(
        -np.ones(len(places)),
        A_ub=table.tocsr() if len(pairs) else None,
        b_ub=distance if len(pairs) else None,
        bounds=np.column_stack([np.zeros(len(places)), walls]),
        method="highs",
    )
    radii = np.minimum(found.x, walls)
    excess = max(0.0, float(np.max(radii[first] + radii[second] - distance, initial=0.0)))
    # Half of the excess from each circle of a pair. `_SLACK` covers the rounding of the sums.
    return [max(0.0, float(radius) - excess / 2 - _SLACK) for radius in radii]


@lru_cache(maxsize=4096)  # a policy that has learned repeats itself
def packing_of(digits: str, count: int) -> Packing | None:
    centers = centers_of(digits, count)
    return None if centers is None else Packing(tuple(centers), tuple(best_radii(centers)))


def rows_text(digits: str) -> str:
    """Return the construction in words for people."""
    rows = [digits[at : at + 3] for at in range(0, LENGTH, 3)]
    return "; ".join(
        f"{row[0]} circles, shift {SHIFTS[_choice(row[1])]:+g}, height {HEIGHTS[_choice(row[2])]:g}"
        for row in rows
    )


def _choice(digit: str) -> int:
    return (int(digit) - int(DIGITS[0])) % len(SHIFTS)


def is_pattern(text: str) -> bool:
    return len(text) == LENGTH and all(digit in DIGITS for digit in text)
