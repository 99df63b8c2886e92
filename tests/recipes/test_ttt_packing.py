"""The verifier of packings: known packings to 1e-12, and all that it refuses; its pictures."""

import json
import math
from pathlib import Path

import pytest

from recipes.ttt_discover.examples.packing import (
    Packing,
    check_packing,
    largest_excess,
    read_output,
)
from recipes.ttt_discover.examples.picture import draw_png, draw_text

KNOWN = {
    int(count): found
    for count, found in json.loads((Path(__file__).parent / "packings.json").read_text()).items()
}
# Four circles that touch each other and the walls.
FOUR = ([[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]], [0.25] * 4)


def changed(count, circle, **fields):
    centers, radii = KNOWN[count]["centers"], list(KNOWN[count]["radii"])
    radii[circle] = fields.get("radius", radii[circle])
    return centers, radii


def grid_of(side):
    centers = [[(i + 0.5) / side, (j + 0.5) / side] for i in range(side) for j in range(side)]
    return centers, [0.5 / side] * side * side


def test_four_equal_circles_touch_and_are_valid():
    found = check_packing(*FOUR, 4)
    assert (found.value, found.strict_value, found.reason) == (1.0, 1.0, "")
    assert largest_excess(found.packing) == 0.0


@pytest.mark.parametrize("count", sorted(KNOWN))
def test_known_good_packings_are_valid(count):
    centers, radii = KNOWN[count]["centers"], KNOWN[count]["radii"]
    found = check_packing(centers, radii, count)
    assert found.reason == ""
    assert found.value == pytest.approx(math.fsum(radii), abs=1e-15)
    assert found.value == pytest.approx(KNOWN[count]["sum"], abs=1e-12)
    assert 0 <= found.value - found.strict_value <= count * 1e-12
    line = json.dumps([centers, radii])
    assert read_output(f"started\n{line}\n\n", count).value == found.value


@pytest.mark.parametrize("count", sorted(KNOWN))
def test_an_overlap_of_1e_9_is_refused_and_of_5e_13_is_not(count):
    centers, radii = KNOWN[count]["centers"], KNOWN[count]["radii"]
    tight = max(range(count), key=lambda i: radii[i])
    bigger = check_packing(*changed(count, tight, radius=radii[tight] + 1e-9), count)
    assert bigger.value == 0.0
    assert "overlap" in bigger.reason or "inside" in bigger.reason
    spare = -largest_excess(check_packing(centers, radii, count).packing)
    grown = radii[tight] + spare + 5e-13
    assert check_packing(*changed(count, tight, radius=grown), count).value > 0


def test_the_limit_is_1e_12_at_walls_and_between_circles():
    for excess, valid in ((9e-13, True), (1.1e-12, False), (1e-9, False)):
        wall = check_packing([[0.25, 0.5]], [0.25 + excess], 1)
        pair = check_packing([[0.2, 0.5], [0.6, 0.5]], [0.2, 0.2 + excess], 2)
        assert [found.value > 0 for found in (wall, pair)] == [valid, valid]


def test_the_strict_value_shrinks_all_circles_by_the_largest_excess():
    found = check_packing([[0.2, 0.5], [0.6, 0.5]], [0.2, 0.2 + 8e-13], 2)
    assert found.value > 0.4
    assert found.strict_value <= 0.4
    assert found.value - found.strict_value == pytest.approx(1.6e-12, rel=0.01)


@pytest.mark.parametrize(
    ("centers", "radii", "reason"),
    [
        (FOUR[0], [*FOUR[1][:3], math.nan], "finite"),
        (FOUR[0], [*FOUR[1][:3], math.inf], "finite"),
        ([*FOUR[0][:3], [math.nan, 0.5]], FOUR[1], "finite"),
        ([*FOUR[0][:3], [10**400, 0.5]], FOUR[1], "finite"),
        (FOUR[0], [*FOUR[1][:3], True], "finite"),
        (FOUR[0], [*FOUR[1][:3], "0.1"], "finite"),
        (FOUR[0], [*FOUR[1][:3], None], "finite"),
        (FOUR[0], [*FOUR[1][:3], -1e-9], "negative"),
        (FOUR[0], [*FOUR[1][:3], [0.25]], "finite"),
        (FOUR[0][:3], FOUR[1], "centers"),
        ([*FOUR[0], [0.5, 0.5]], FOUR[1], "centers"),
        ([*FOUR[0][:3], [0.5]], FOUR[1], "centers"),
        ([*FOUR[0][:3], [0.5, 0.5, 0.5]], FOUR[1], "centers"),
        ([*FOUR[0][:3], "ab"], FOUR[1], "centers"),
        (FOUR[0], FOUR[1][:3], "radii"),
        (FOUR[0], [*FOUR[1], 0.0], "radii"),
        (FOUR[0], {"0": 0.25}, "radii"),
        (FOUR[0], None, "radii"),
        (None, FOUR[1], "centers"),
        ([*FOUR[0][:3], [1.25, 0.75]], FOUR[1], "inside"),
        ([*FOUR[0][:3], FOUR[0][0]], FOUR[1], "overlap"),
    ],
)
def test_a_packing_that_breaks_a_rule_is_refused(centers, radii, reason):
    found = check_packing(centers, radii, 4)
    assert (found.value, found.strict_value) == (0.0, 0.0)
    assert reason in found.reason


LINE = json.dumps(list(FOUR))


@pytest.mark.parametrize(
    "stdout",
    [
        "",
        "\n\n",
        "done",
        f"{LINE}\ndone",
        f"{LINE} {LINE}",
        json.dumps([*FOUR, 1.0]),
        json.dumps(FOUR[0]),
        json.dumps({"centers": FOUR[0], "radii": FOUR[1]}),
        LINE.replace("0.75", "NaN", 1),
        LINE.replace("0.75", "-Infinity", 1),
        LINE.replace("0.75", "1e999", 1),
        f"[{LINE}",
        "[" * 60_000,
        json.dumps([*FOUR, "x" * 100_000]),
        LINE + " " * 70_000 + "x",
    ],
    ids=lambda text: text[:24] or "empty",
)
def test_an_output_that_is_no_packing_scores_0(stdout):
    found = read_output(stdout, 4)
    assert found.value == 0.0
    assert found.reason


def test_a_packing_is_read_back_from_its_figure():
    packing = check_packing(*FOUR, 4).packing
    assert Packing.of_figure(json.loads(json.dumps(packing.figure()))) == packing


def test_prints_before_the_result_are_allowed():
    assert read_output(f"step 1\nstep 2\n{LINE}\r\n", 4).value == 1.0


def test_known_values_of_square_grids():
    assert check_packing(*grid_of(5), 25).value == pytest.approx(2.5)
    assert check_packing(*grid_of(6), 36).value == pytest.approx(3.0)


def test_the_picture_is_a_png_and_equal_packings_give_equal_bytes():
    packing = check_packing(*FOUR, 4).packing
    picture = draw_png(packing, "four: 1.0")
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture == draw_png(packing, "four: 1.0")
    other = Packing(packing.centers, (0.25, 0.25, 0.25, 0.1))
    assert picture != draw_png(other, "four: 1.0")


def test_the_terminal_shows_the_outlines_in_a_frame():
    lines = draw_text(check_packing(*FOUR, 4).packing, width=20).splitlines()
    assert len(lines) == 12
    assert {len(line) for line in lines} == {22}
    body = [line[1:-1] for line in lines[1:-1]]
    blank = chr(0x2800)
    # The middles of the circles and the middle of the square are empty, the walls are touched.
    for row, column in ((2, 5), (2, 14), (7, 5), (7, 14)):
        assert body[row][column] == blank
    assert body[0][5] != blank
    assert body[9][5] != blank
    assert body[2][0] != blank
    assert draw_text(Packing((), ()), width=4).splitlines()[1] == f"|{blank * 4}|"
