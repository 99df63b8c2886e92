"""Samples as series, and the verdict on each."""

import json
from pathlib import Path

from tests.soak.budgets import budget_of
from tests.soak.verdict import Point, Verdict, judge


def series_of(samples: Path) -> dict[str, list[Point]]:
    """What an earlier run, or one that still goes on, has written."""
    series: dict[str, list[Point]] = {}
    for line in samples.read_text().splitlines():
        row = json.loads(line)
        t_s, requests = row.pop("t_s"), row.pop("requests")
        for name, value in row.items():
            series.setdefault(name, []).append(Point(t_s, value, requests))
    return series


def verdicts(series: dict[str, list[Point]]) -> list[Verdict]:
    """Of everything that has a budget. Processor time and plain counts are there to be read alone."""
    judged = {name: points for name, points in series.items() if not name.startswith(("cpu_s:", "count:"))}
    return [judge(name, judged[name], budget_of(name)) for name in sorted(judged)]
