"""`python -m tests.methods.known_packings 26 --seconds 600`: good packings for the verifier's tests.

Basin hopping over local searches; no model. Writes the packing into tests/recipes/packings.json if
it is better than the packing there.
"""

# A local search is a sequence of linear programs: the distance of two centres is convex in them, so
# its tangent is a lower bound. The solution of each program is a packing, and no sum falls.

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from recipes.ttt_discover.examples.packing import check_packing

FILE = Path(__file__).parents[1] / "recipes" / "packings.json"
Array = np.ndarray


def improved(places: Array, reach: float) -> tuple[Array, Array]:
    """The best packing within `reach` of these centres by the tangents: (centres, radii)."""
    n = len(places)
    first, second = np.triu_indices(n, 1)
    offset = places[first] - places[second]
    distance = np.maximum(np.hypot(*offset.T), 1e-9)
    near = distance < 0.62
    first, second, unit = first[near], second[near], offset[near] / distance[near, None]
    m, ones = len(first), np.ones(int(near.sum()))
    # x, y of all circles, then the radii. A pair: r_i + r_j - u (d_i - d_j) <= distance.
    rows, pairs = [], np.arange(m)
    for sign, index in ((-1.0, first), (1.0, second)):
        rows += [(sign * unit[:, axis], pairs, axis * n + index) for axis in (0, 1)]
        rows.append((ones, pairs, 2 * n + index))
    bounds_b = [distance[near]]
    every = np.arange(n)
    for wall in range(4):
        axis, sign = wall % 2, (-1.0 if wall < 2 else 1.0)
        at = m + wall * n + every
        rows += [(np.full(n, sign), at, axis * n + every), (np.ones(n), at, 2 * n + every)]
        bounds_b.append(places[:, axis] if wall < 2 else 1 - places[:, axis])
    data, row, column = (np.concatenate(part) for part in zip(*rows, strict=True))
    table = coo_array((data, (row, column)), (m + 4 * n, 3 * n)).tocsr()
    cost = np.concatenate([np.zeros(2 * n), -np.ones(n)])
    bounds = [(-reach, reach)] * (2 * n) + [(0, 0.5)] * n
    found = linprog(cost, A_ub=table, b_ub=np.concatenate(bounds_b), bounds=bounds, method="highs")
    if found.x is None:
        return places, np.zeros(n)
    return places + found.x[: 2 * n].reshape(2, n).T, found.x[2 * n :]


def local_optimum(places: Array) -> tuple[float, Array, Array]:
    reach, best, radii = 0.1, -1.0, np.zeros(len(places))
    for _ in range(120):
        moved, radii = improved(places, reach)
        total = float(radii.sum())
        if total < best + 1e-6:
            reach /= 4
        if reach < 1e-9 or (total < best + 1e-11 and reach < 1e-5):
            break
        best, places = max(best, total), moved
    return best, places, radii


def polished(places: Array, radii: Array) -> tuple[Array, Array]:
    """Newton's method on the rules that hold with equality."""
    n = len(radii)
    first, second = np.triu_indices(n, 1)
    gaps = np.hypot(*(places[first] - places[second]).T) - radii[first] - radii[second]
    pairs = [(int(i), int(j)) for i, j in zip(first[gaps < 1e-6], second[gaps < 1e-6], strict=True)]
    walls = [
        (i, axis, side)
        for i in range(n)
        for axis in (0, 1)
        for side in (0, 1)
        if abs(places[i, axis] - side) - radii[i] < 1e-6
    ]
    for _ in range(8):
        table, rest = np.zeros((len(pairs) + len(walls), 3 * n)), []
        for k, (i, j) in enumerate(pairs):
            offset = places[i] - places[j]
            length = math.hypot(*offset)
            for axis in (0, 1):
                table[k, axis * n + i], table[k, axis * n + j] = (
                    offset[axis] / length,
                    -offset[axis] / length,
                )
            table[k, 2 * n + i] = table[k, 2 * n + j] = -1
            rest.append(length - radii[i] - radii[j])
        for k, (i, axis, side) in enumerate(walls, len(pairs)):
            table[k, axis * n + i], table[k, 2 * n + i] = (1 if side == 0 else -1), -1
            rest.append(abs(places[i, axis] - side) - radii[i])
        step = np.linalg.lstsq(table, -np.array(rest), rcond=1e-12)[0]
        places, radii = places + step[: 2 * n].reshape(2, n).T, radii + step[2 * n :]
    return places, radii


def started(n: int, draw: np.random.Generator) -> Array:
    """Rows of a rough grid, shaken."""
    rows = int(draw.integers(5, 7))
    split = np.bincount(draw.integers(0, rows, n * 3), minlength=rows) / (3 * n)
    counts = np.maximum(1, np.round((split * 0.3 + 0.7 / rows) * n)).astype(int)
    while counts.sum() != n:
        counts[draw.integers(rows)] += int(np.sign(n - counts.sum()))
    places = [
        ((k + 0.5) / max(c, 1), (row + 0.5) / rows)
        for row, c in enumerate(counts)
        for k in range(c)
    ]
    return np.clip(np.array(places[:n]) + draw.normal(0, 0.03, (n, 2)), 0.02, 0.98)


def shaken(places: Array, radii: Array, draw: np.random.Generator) -> Array:
    moved = places.copy()
    kind = draw.random()
    if kind < 0.5:  # a small circle goes elsewhere
        for i in draw.choice(
            np.argsort(radii)[: len(radii) // 2], draw.integers(1, 3), replace=False
        ):
            moved[i] = draw.random(2)
        return np.clip(moved + draw.normal(0, 0.01, moved.shape), 0.01, 0.99)
    if kind < 0.8:  # a region is stirred
        centre, size = draw.random(2), draw.uniform(0.15, 0.4)
        near = np.hypot(*(moved - centre).T) < size
        moved[near] += draw.normal(0, 0.08, (int(near.sum()), 2))
        return np.clip(moved, 0.01, 0.99)
    return np.clip(moved + draw.normal(0, draw.uniform(0.01, 0.05), moved.shape), 0.01, 0.99)


def known_packing(n: int) -> tuple[float, Array, Array] | None:
    known = json.loads(FILE.read_text()).get(str(n)) if FILE.exists() else None
    if known is None:
        return None
    return known["sum"], np.array(known["centers"]), np.array(known["radii"])


def search(n: int, seconds: float, seed: int, *, go_on: bool) -> tuple[float, Array, Array]:
    draw, end = np.random.default_rng(seed), time.monotonic() + seconds
    best: tuple[float, Array, Array] = (-1.0, np.zeros((n, 2)), np.zeros(n))
    current, idle, tries = (known_packing(n) if go_on else None) or best, 0 if go_on else 99, 0
    while time.monotonic() < end:
        fresh = idle > 60 and not go_on
        found = local_optimum(started(n, draw) if fresh else shaken(current[1], current[2], draw))
        tries += 1
        better = fresh or found[0] > current[0] + 1e-9
        idle = 0 if better else idle + 1
        if better or found[0] > current[0] - 0.002 * draw.random() ** 4:
            current = found
        if found[0] > best[0] + 1e-9:
            best = found
            sys.stderr.write(f"{n}: {best[0]:.10f} after {tries} local searches\n")
            sys.stderr.flush()
    return best


def keep(n: int, places: Array, radii: Array) -> float:
    """Write the packing if it is valid and better than the one in the file."""
    places, radii = polished(places, radii)
    centers, sizes = places.tolist(), radii.tolist()
    checked = check_packing(centers, sizes, n)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    if checked.value > known.get(str(n), {}).get("sum", 0.0):
        known[str(n)] = {"sum": checked.value, "centers": centers, "radii": sizes}
        FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{n}: {checked.value!r} {checked.strict_value!r} {checked.reason}\n")
    return checked.value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--go-on", action="store_true", help="from the packing in the file")
    options = parser.parse_args(arguments)
    _, places, radii = search(options.count, options.seconds, options.seed, go_on=options.go_on)
    keep(options.count, places, radii)


if __name__ == "__main__":
    main()
