"""Samples as series, and the verdict on each."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.soak.budgets import budget_of
from tests.soak.verdict import Point, Verdict, judge

LEFT_BY_RELEASES = ("files:staging", "files:harness/trees")
KEPT_S = 600.0


def series_of(samples: Path) -> dict[str, list[Point]]:
    """What an earlier run, or one that still goes on, has written."""
    series: dict[str, list[Point]] = {}
    for line in samples.read_text().splitlines():
        row = json.loads(line)
        t_s, requests = row.pop("t_s"), row.pop("requests")
        for name, value in row.items():
            series.setdefault(name, []).append(Point(t_s, value, requests))
    return series


def beyond_recent(points: Sequence[Point], releases: Sequence[Point]) -> list[Point]:
    """What there is beyond one for each release of the time that it is kept for: as many as that
    there may be, however fast it learns.
    """
    times = [point.t_s for point in releases]
    found = []
    for point in points:
        now, then = (
            releases[max(bisect_right(times, t) - 1, 0)].value
            for t in (point.t_s, point.t_s - KEPT_S)
        )
        found.append(replace(point, value=point.value - (now - then)))
    return found


def verdicts(series: dict[str, list[Point]]) -> list[Verdict]:
    """Of everything that has a budget. Processor time and plain counts are there to be read
    alone.
    """
    judged = {
        name: points for name, points in series.items() if not name.startswith(("cpu_s:", "count:"))
    }
    judged |= {
        name: beyond_recent(judged[name], series["count:releases"])
        for name in LEFT_BY_RELEASES
        if {name, "count:releases"} <= {*series}
    }
    return [judge(name, judged[name], budget_of(name)) for name in sorted(judged)]
