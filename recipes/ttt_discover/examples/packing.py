"""Circles in the unit square: the verifier of packings."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

TOLERANCE = 1e-12
MOST_CHARACTERS = 64 * 1024


@dataclass(frozen=True, slots=True)
class Packing:
    centers: tuple[tuple[float, float], ...]
    radii: tuple[float, ...]

    def figure(self) -> dict[str, Any]:
        return {"centers": [list(center) for center in self.centers], "radii": list(self.radii)}

    @classmethod
    def of_figure(cls, figure: Mapping[str, Any]) -> Self:
        """Read a packing from the figure of a solution, as `solution.json` holds it."""
        return cls(tuple((x, y) for x, y in figure["centers"]), tuple(figure["radii"]))


@dataclass(frozen=True, slots=True)
class PackingScore:
    """`value`: the sum of the radii, 0 if invalid for `reason`.

    `strict_value`: the sum if all radii shrink until no circle overlaps at all.
    """

    value: float
    strict_value: float = 0.0
    reason: str = ""
    packing: Packing | None = None


def check_packing(centers: Any, radii: Any, count: int) -> PackingScore:
    """Score `count` disjoint circles inside the unit square, given as JSON values."""
    if not _is_list(centers, count) or not all(_is_list(center, 2) for center in centers):
        return PackingScore(0.0, reason=f"centers must be a list of {count} pairs")
    if not _is_list(radii, count):
        return PackingScore(0.0, reason=f"radii must be a list of {count} numbers")
    numbers = [*(x for center in centers for x in center), *radii]
    if not all(map(_is_finite_number, numbers)):
        return PackingScore(0.0, reason="all numbers must be finite")
    packing = Packing(tuple((float(x), float(y)) for x, y in centers), tuple(map(float, radii)))
    if any(radius < 0 for radius in packing.radii):
        return PackingScore(0.0, reason="a radius is negative")
    reason = _broken_rule(packing)
    if reason:
        return PackingScore(0.0, reason=reason, packing=packing)
    excess = max(0.0, largest_excess(packing))
    strict = math.fsum(max(0.0, radius - excess) for radius in packing.radii)
    return PackingScore(math.fsum(packing.radii), strict, packing=packing)


def _broken_rule(packing: Packing) -> str:
    circles = list(zip(packing.centers, packing.radii, strict=True))
    for i, ((x, y), r) in enumerate(circles):
        if not (min(x, y) - r >= -TOLERANCE and max(x, y) + r <= 1 + TOLERANCE):
            return f"circle {i} is not inside the square"
        for j in range(i):
            center, other = circles[j]
            if not math.dist((x, y), center) >= r + other - TOLERANCE:
                return f"circles {j} and {i} overlap"
    return ""


def largest_excess(packing: Packing) -> float:
    """Return by how much a circle passes a wall or enters another circle at most."""
    circles = list(zip(packing.centers, packing.radii, strict=True))
    walls = (max(r - min(x, y), max(x, y) + r - 1) for (x, y), r in circles)
    pairs = (
        r + other - math.dist(center, place)
        for i, (center, r) in enumerate(circles)
        for place, other in circles[:i]
    )
    return max([*walls, *pairs])


def read_output(stdout: str, count: int) -> PackingScore:
    """Score the packing on the last line of a program's output: JSON [centers, radii]."""
    line = stdout.rstrip().rpartition("\n")[2]
    if not line or len(line) > MOST_CHARACTERS:
        return PackingScore(0.0, reason="the last line of the output is no packing")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return PackingScore(0.0, reason="the last line of the output is no JSON")
    if not _is_list(found, 2):
        return PackingScore(0.0, reason="the last line of the output is not [centers, radii]")
    return check_packing(found[0], found[1], count)


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == length


def _is_finite_number(value: Any) -> bool:
    # A bool is an int, and an int may be too great for a float.
    if type(value) not in {int, float}:
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
