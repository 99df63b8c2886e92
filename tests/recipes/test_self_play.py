"""Self-play without a game: bands, regret, the batch of a round, credit, the example's domain."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from recipes.self_play.admission import credit, oldest_round, seat_of
from recipes.self_play.domain import Task
from recipes.self_play.examples.sums.domain import DOMAIN
from recipes.self_play.knobs import Knobs
from recipes.self_play.pool import CAPACITY, Known, Pool, band_of, known, restored
from reefcommon.config import load
from reefcommon.events import Sampling
from reefcommon.ids import LoadId
from reefcommon.recipe_loading import load_recipe
from tests.recipes.samples import sample

HERE = LoadId("run", 5)
KNOBS = Knobs()


def task(text):
    return Task(text, "1", "2")


@pytest.mark.parametrize(
    ("mean", "band"),
    [
        (0.0, "out_of_reach"),
        (0.0999, "out_of_reach"),
        (0.1, "frontier"),
        (0.5, "frontier"),
        (0.9, "frontier"),
        (0.9001, "mastered"),
        (1.0, "mastered"),
    ],
)
def test_the_bands_of_mean_scores(mean, band):
    assert band_of(mean) == band


def test_regret_is_the_gain_by_the_hint():
    assert known(task("a"), 3, (0.0, 1.0, 0.0, 0.0), (1.0, 0.5)).regret == 0.5
    assert known(task("a"), 3, (1.0, 1.0), (0.0, 1.0)).regret == -0.5
    assert known(task("a"), 3, (1.0, 0.0), ()).regret == 0.0  # nothing was measured


def test_the_frontier_is_listed_by_regret_and_leaves_the_other_bands_out():
    figures = {
        "a": (0.5, 0.6),
        "b": (0.2, 1.0),
        "c": (0.95, 1.0),
        "d": (0.05, 1.0),
        "e": (0.6, 0.5),
    }
    pool = Pool([Known(task(text), 0, *means) for text, means in figures.items()])
    assert [one.task.text for one in pool.frontier(9)] == ["b", "a", "e"]
    assert [one.task.text for one in pool.frontier(1)] == ["b"]
    assert pool.frontier(0) == []


def test_the_last_play_of_a_task_counts():
    pool = Pool()
    pool.add([Known(task("a"), 0, 0.5, 1.0), Known(task("b"), 0, 0.5, 1.0)])
    pool.add([Known(task("a"), 3, 1.0, 1.0)])
    assert [one.task.text for one in pool.frontier(9)] == ["b"]
    assert pool.since(1) == {"a"}
    assert pool.since(0) == {"a", "b"}
    assert restored(pool.state()).tasks == pool.tasks


def test_the_pool_forgets_the_oldest_plays():
    pool = Pool([Known(task(str(i)), i, 0.5, 1.0) for i in range(CAPACITY)])
    pool.add([Known(task("0"), 9999, 0.5, 1.0), Known(task("new"), 9999, 0.5, 1.0)])
    assert len(pool.tasks) == CAPACITY
    assert "1" not in pool.tasks
    assert {"0", "new"} <= pool.tasks.keys()


def unit(number, score, *, role="solver", group="0", round_=2, units=6, **changes):
    stated = {"role": role, "round": round_, "group": group, "number": number, "units": units}
    name = f"smp-{round_}-{number}"
    fields = {"event_id": name, "score": score, "metadata": stated, "sampling": (Sampling(),)}
    return sample(number, **(fields | changes))


def a_round(round_=2, **changes):
    solver = [
        unit(i, score, group=str(i // 2), round_=round_, **changes)
        for i, score in enumerate((1.0, 0.0, 1.0, 1.0))
    ]
    designer = [
        unit(4 + i, score, role="designer", group="designer", round_=round_, **changes)
        for i, score in enumerate((0.25, 0.75))
    ]
    return [*solver, *designer]


def test_credit_compares_proposals_with_proposals_and_plays_of_a_task_with_each_other():
    assert credit(a_round()) == pytest.approx([1.0, -1.0, 0.0, 0.0, -1.0, 1.0])


def test_a_round_waits_until_all_of_its_units_are_there():
    whole = a_round()
    assert oldest_round(whole[:-1], HERE, KNOBS).batch == ()
    decision = oldest_round(whole[::-1], HERE, KNOBS)
    assert [one.metadata["number"] for one in decision.batch] == list(range(6))
    assert decision.refused == ()


def test_the_oldest_complete_round_goes_first_and_ends_those_before_it():
    waiting = [*a_round(3), *a_round(2), *a_round(1)[:3]]
    decision = oldest_round(waiting, HERE, KNOBS)
    assert {one.metadata["round"] for one in decision.batch} == {2}
    assert [(u.metadata["round"], reason) for u, reason, _ in decision.refused] == [
        (1, "incomplete_round")
    ] * 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"load_id": "run:4"}, "stale"),
        ({"score": None}, "no_score"),
        ({"sampling": (Sampling(top_p=0.9),)}, "truncated_sampling: top_p"),
        ({"score": 0.5}, "no_difference"),
    ],
)
def test_a_round_with_a_flaw_is_refused_whole(changes, reason):
    whole = [one.model_copy(update=changes) for one in a_round()]
    decision = oldest_round(whole, HERE, KNOBS)
    assert decision.batch == ()
    assert {why for _, why, _ in decision.refused} == {f"round_discarded: {reason}"}
    assert len(decision.refused) == 6


def test_a_round_of_mixed_releases_is_discarded():
    whole = a_round()
    whole[2] = whole[2].model_copy(update={"load_id": "run:4"})
    reasons = {why for _, why, _ in oldest_round(whole, HERE, KNOBS).refused}
    assert reasons == {"round_discarded: mixed_releases"}


def test_a_mask_of_tokens_is_corrected():
    masked = a_round(sampling=(Sampling(allowed_token_ids=(3, 4, 5)),))
    assert len(oldest_round(masked, HERE, KNOBS).batch) == 6


def test_a_second_report_on_a_place_is_refused():
    again = unit(0, 0.0, event_id="again")
    (refused,) = oldest_round([*a_round(), again], HERE, KNOBS).refused
    assert (refused[0].event_id, refused[1]) == ("again", "place_taken")


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"role": "designer", "round": 0}, "designer_not_trained"),
        ({}, "no_place"),
        ({"role": "solver", "round": 0, "number": True, "units": 3}, "no_place"),
        ({"role": "solver", "round": 0, "number": -1, "units": 3}, "no_place"),
        ({"role": "solver", "round": 0, "number": 3, "units": 3}, "no_place"),
    ],
)
def test_a_report_without_a_place_is_refused(stated, reason):
    assert seat_of(stated) == reason


def test_a_designer_needs_hints():
    with pytest.raises(ValidationError, match="hint_plays"):
        Knobs(hint_plays=0)
    assert Knobs(hint_plays=0, proposer="uniform").hint_plays == 0


def test_the_example_loads():
    (binding,) = load(Path("recipes/self_play/examples/sums/serve.yaml")).reef
    assert load_recipe(binding.recipe, binding.knobs).domain is DOMAIN


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("12 + 34 = 46", "12 + 34"),
        ("Here it is.\n 7*8 = 56 ", "7 * 8"),
        ("5 - 12 = -7", "5 - 12"),
        ("12 + 34", None),
        ("12345 + 1 = 12346", None),
        ("12 / 4 = 3", None),
        ("12 + 34 = 46\nEasy!", None),
        ("", None),
    ],
)
def test_a_sum_is_read_from_the_last_line(answer, text):
    found = DOMAIN.parse(answer)
    assert (found and found.text) == text


@pytest.mark.parametrize(
    ("problem", "answer", "expected"),
    [
        ("12 + 34 = 46", "46", 1.0),
        ("12 + 34 = 46", "I think\n46", 1.0),
        ("12 + 34 = 46", "46 it is", 0.0),
        ("12 + 34 = 47", "47", 0.0),  # the designer's solution does not count
        ("5 - 12 = -7", "-7", 1.0),
        ("12 + 34 = 46", "", 0.0),
    ],
)
def test_a_sum_is_scored_by_its_value(problem, answer, expected):
    assert asyncio.run(DOMAIN.score(DOMAIN.parse(problem), answer, None)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_sum_is_right_and_its_hint_true(seed):
    drawn = DOMAIN.draw(seed)
    assert asyncio.run(DOMAIN.score(drawn, drawn.reference, None)) == 1
    assert drawn.hint == f"the last digit is {drawn.reference[-1]}."
    assert DOMAIN.draw(seed) == drawn
    assert len({DOMAIN.draw(one).text for one in range(20)}) == 20
