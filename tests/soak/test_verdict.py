"""The verdict finds growth that is there and none that is not. E7: bounded memory and session
number over a long run.
"""

import json
import math
import random

import pytest

from tests.soak.budgets import BUDGETS, budget_of
from tests.soak.run import Outcome, Plan
from tests.soak.series import series_of, verdicts
from tests.soak.verdict import Budget, Point, judge

HOUR = 240  # samples, one each 15 s


def series(value, *, samples=HOUR, rate=3.0):
    return [Point(n * 15.0, value(n * 15.0 / 3600), int(n * 15 * rate)) for n in range(samples)]


def noise(size, seed=0):
    rng = random.Random(seed)
    return lambda: rng.gauss(0, size)


def test_a_planted_leak_is_found_through_noise():
    shake = noise(2.0)
    verdict = judge("rss_mb:x", series(lambda hour: 100 + 24 * hour + shake()), Budget(8.0))
    assert verdict.word == "GROWING"
    assert verdict.per_hour == pytest.approx(24, abs=3)
    assert verdict.first < verdict.middle < verdict.last


@pytest.mark.parametrize(
    "value",
    [
        lambda hour: 100.0,
        lambda hour: 100 + 80 * min(hour / 0.15, 1.0),  # it fills within the warm-up
        lambda hour: (
            100 + (hour * 40) % 4
        ),  # a saw-tooth: a log that is emptied, a file that is rewritten
        lambda hour: 100 + 500 * (0.4 < hour < 0.42),  # one spike
        lambda hour: 300 - 100 * hour,
        lambda hour: 100 + 20 * (1 - math.exp(-8 * hour)),  # it fills up, and then stays
    ],
    ids=["flat", "warm-up", "saw-tooth", "spike", "shrinks", "fills up"],
)
def test_what_does_not_grow_is_bounded(value):
    shake = noise(1.0)
    assert judge("x", series(lambda hour: value(hour) + shake()), Budget(8.0)).word == "BOUNDED"


def test_a_leak_that_begins_late_is_found():
    assert (
        judge("x", series(lambda hour: 100 + 60 * max(hour - 0.4, 0)), Budget(8.0)).word
        == "GROWING"
    )


def test_what_a_policy_keeps_may_grow_with_the_traffic_and_not_faster():
    budget = Budget(1.0, per_1000=10.0)
    kept = judge(
        "disk", series(lambda hour: 50 + 90 * hour), budget
    )  # 10,800 requests an hour: 8.3 for each thousand
    assert kept.word == "KEPT"
    assert kept.per_1000 == pytest.approx(8.33, abs=0.1)
    assert kept.allowed_per_hour == pytest.approx(109, abs=2)
    assert judge("disk", series(lambda hour: 50 + 130 * hour), budget).word == "GROWING"
    assert judge("disk", series(lambda hour: 50 + 90 * hour, rate=1.0), budget).word == "GROWING"


def test_a_ceiling_that_something_else_enforces_lets_grow_below_it_alone():
    budget = Budget(3.0, ceiling=200.0)
    assert judge("fds", series(lambda hour: 60 + 90 * hour), budget).word == "CAPPED"
    assert judge("fds", series(lambda hour: 160 + 90 * hour), budget).word == "GROWING"


def test_few_samples_are_no_verdict():
    assert judge("x", series(lambda hour: 1e6 * hour, samples=5), Budget(1.0)).word == "TOO SHORT"
    assert judge("x", [], Budget(1.0)).word == "TOO SHORT"


def test_the_most_specific_budget_counts_and_everything_has_one():
    assert budget_of("disk_mb:objectstore") is BUDGETS["disk_mb:objectstore"]
    assert budget_of("disk_mb:anything") is BUDGETS["disk_mb"]
    assert budget_of("unheard-of:x").per_hour < 1


def test_what_releases_leave_may_be_as_many_as_there_were_of_late():
    """However fast it learns: one for each release of the last ten minutes; what stays longer
    shows.
    """
    faster = series(lambda hour: 600 * hour * hour)
    left = series(lambda hour: 600 * hour * hour - 600 * max(hour - 1 / 6, 0) ** 2)
    assert {v.word for v in verdicts({"count:releases": faster, "files:staging": left})} == {
        "BOUNDED"
    }
    stays = series(lambda hour: 600 * hour * hour - 600 * max(hour - 1 / 3, 0) ** 2)
    assert {v.word for v in verdicts({"count:releases": faster, "files:staging": stays})} == {
        "GROWING"
    }


def test_growth_loss_and_an_unclean_end_are_problems(tmp_path):
    outcome = Outcome(Plan(60, 3, tmp_path), exit_code=0, drain_s=5)
    outcome.verdicts = verdicts(
        {
            "rss_mb:x": series(lambda hour: 100 + 50 * hour),
            "cpu_s:x": series(lambda hour: 1e6 * hour),
        }
    )
    assert [problem.split()[0] for problem in outcome.problems] == ["rss_mb:x"]
    bad = Outcome(
        Plan(60, 3, tmp_path),
        exit_code=1,
        drain_s=100,
        missing=["rec-1"],
        left_over=["engine (7)"],
        counts={"failed": 2},
        failures=["x"],
    )
    assert len(bad.problems) == 5
    assert not bad.as_json()["passed"]


def test_the_samples_of_a_run_that_goes_on_can_be_judged(tmp_path):
    rows = [
        {
            "t_s": n * 15.0,
            "requests": n * 40,
            "rss_mb:a": 100 + n * 0.2,
            "rss_mb:b": 50.0,
            "cpu_s:a": n * 9.0,
        }
        for n in range(HOUR)
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert {v.name: v.word for v in verdicts(series_of(tmp_path / "samples.jsonl"))} == {
        "rss_mb:a": "GROWING",
        "rss_mb:b": "BOUNDED",
    }
