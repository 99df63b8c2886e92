"""The search of TTT-Discover: its grids, its reports, its solutions, and a kill at every effect."""

import asyncio
import json
import math
import random

import pytest

from recipes.ttt_discover.archive import Solution
from recipes.ttt_discover.examples.row_pattern.pattern import is_pattern
from recipes.ttt_discover.examples.row_pattern.problem import RowPattern
from recipes.ttt_discover.problem import Verified
from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from reefcommon.errors import BadConfig, Poison, Unavailable
from reefcommon.recipe_context import BudgetSpent
from tests.recipes.seeking import FakeSeekContext, Killed, World

KNOBS = {"steps": 3, "groups_per_step": 2, "rollouts_per_group": 3, "max_tokens": 18, "seed": 4}


def digits(prompt, seed):
    """A policy without weights: a function of prompt and seed, sometimes of the wrong form."""
    draw = random.Random(f"{prompt} {seed}")
    text = "".join(draw.choice("234567") for _ in range(18))
    return text if draw.random() < 0.9 else text[:5]


class Light(RowPattern):
    """Judged at once: the sum of the digits."""

    def score(self, answer):
        if not is_pattern(answer):
            return Verified(0.0)
        value = float(sum(map(int, answer)))
        return Verified(value, Solution(value, answer))

    def picture(self, solution):
        return solution.text.encode()


def recipe(**knobs):
    return TTTDiscoverRecipe(TTTDiscoverRecipe.knobs_type(**(KNOBS | knobs)))


def world(policy=digits, **knobs):
    return World(recipe(**knobs), policy)


def seek(world, kill_at=None):
    """Returns the number of effects."""
    ctx = FakeSeekContext(world, kill_at)
    asyncio.run(world.recipe.seek(ctx))
    return ctx.moments


def state(world):
    return world.committed["search"]


def outcome_of(world):
    """All that the search has left outside, in no order of arrival."""
    return {
        "state": state(world),
        "asked": {key: (one.receipt, one.text) for key, one in world.asked.items()},
        "reports": world.reports,
        "trained": [{unit.event_id for unit in batch} for batch in world.trained],
        "solutions": {
            json.loads(one["files"]["solution.json"])["value"] for one in world.solutions.values()
        },
    }


@pytest.fixture(scope="module")
def whole():
    one = world()
    seek(one)
    return one


def test_each_step_is_a_whole_grid_with_places_and_one_answer_each(whole):
    assert sorted(whole.asked) == sorted(
        f"{s}-{g}-{r}" for s in range(3) for g in range(2) for r in range(3)
    )
    for request in whole.requests:
        assert request["key"] == "-".join(request["tags"][n] for n in ("step", "group", "rollout"))
        assert (request["temperature"], request["top_p"], request["top_k"]) == (1.0, 1.0, -1)
        assert "allowed_token_ids" not in request
    assert len({request["seed"] for request in whole.requests}) == 18
    assert [len(batch) for batch in whole.trained] == [6, 6, 6]
    assert whole.refused == []


def test_the_reports_follow_the_contract(whole):
    key = {one.receipt: key for key, one in whole.asked.items()}
    for receipt, (score, stated) in whole.reports.items():
        step, group, rollout = map(int, key[receipt].split("-"))
        assert stated == {
            "algorithm": "tttd",
            "step": step,
            "group": group,
            "rollout": rollout,
            "groups_per_step": 2,
            "rollouts_per_group": 3,
            "comparison_set": f"tttd-step-{step}-group-{group}",
        }
        assert score == whole.recipe.problem.score(whole.asked[key[receipt]].text).reward


def test_the_first_step_shows_no_parent_and_later_steps_show_solutions(whole):
    shown = {
        step: [r["prompt"] for r in whole.requests if r["tags"]["step"] == str(step)]
        for step in range(3)
    }
    assert all("Before" not in prompt for prompt in shown[0])
    assert any("Before" in prompt for prompt in shown[1])
    texts = {node["solution"]["text"] for node in state(whole)["archive"]["nodes"]}
    texts |= {whole.recipe.problem.score(a.text).solution and
              whole.recipe.problem.score(a.text).solution.text for a in whole.asked.values()}  # fmt: skip
    for prompt in shown[1] + shown[2]:
        if "Before: " in prompt:
            assert prompt.split("Before: ")[1].rstrip(".") in texts


def test_every_answer_of_a_step_comes_from_the_weights_before_it(whole):
    assert [row["load_id"] for row in state(whole)["history"]] == ["run:0", "run:1", "run:2"]
    for key, asked in whole.asked.items():
        assert asked.load_id == f"run:{key.split('-')[0]}"


def test_each_new_best_is_a_solution_with_its_picture(whole):
    best, published = -1.0, []
    for row in state(whole)["history"]:
        if row["best"] is not None and row["best"] > best:
            best = row["best"]
            published.append(best)
    values = []
    for one in whole.solutions.values():
        assert one["kind"] == "solution"
        assert sorted(one["files"]) == ["best.png", "solution.json"]
        assert one["files"]["best.png"].startswith(b"\x89PNG")
        told = json.loads(one["files"]["solution.json"])
        scored = whole.recipe.problem.score(told["text"])
        assert told["value"] == one["metrics"]["value"] == scored.reward
        assert told["figure"] == scored.solution.figure
        values.append(told["value"])
    assert values == published
    rewards = [score for score, _ in whole.reports.values()]
    assert max(rewards) == best == state(whole)["published"]


def test_nothing_is_asked_before_the_first_release():
    one = light()
    one.first_release = 3
    seek(one)
    assert [row["outcome"] for row in state(one)["history"]] == ["published"] * 3


@pytest.mark.parametrize("error", [BudgetSpent("no calls left"), Unavailable("no sandbox")])
def test_a_failure_keeps_its_kind_and_the_search_goes_on_afterwards(error):
    one, whole = light(), light()
    seek(whole)

    def failing(prompt, seed):
        if len(one.asked) == 8:
            raise error
        return digits(prompt, seed)

    one.policy = failing
    with pytest.raises(type(error), match=str(error)):
        seek(one)
    one.policy = digits
    seek(one)
    assert outcome_of(one) == outcome_of(whole)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_verifier_that_gives_no_number_stops_the_step(value):
    """Nothing of it is kept, so that the search goes on when the verifier is mended."""

    class Odd(Light):
        def score(self, answer):
            return Verified(value) if is_pattern(answer) else Verified(0.0)

    one, whole = light(), light()
    seek(whole)
    one.recipe.problem = Odd(26)
    with pytest.raises(Poison, match="the verifier gave the reward"):
        seek(one)
    assert (one.reports, one.committed) == ({}, {})
    one.recipe.problem = Light(26)
    seek(one)
    assert outcome_of(one) == outcome_of(whole)


def test_a_mask_is_asked_for():
    one = world(allowed_token_ids=(17, 18), steps=1)
    seek(one)
    assert all(request["allowed_token_ids"] == [17, 18] for request in one.requests)


def light():
    one = world()
    one.recipe.problem = Light(26)
    return one


def test_a_kill_at_any_effect_changes_nothing():
    """Each of the search's effects, before and after it is done: the same answers, the same
    archive, each step learned once.
    """
    whole = light()
    effects = seek(whole)
    assert effects > 80
    for kill_at in range(effects):
        one = light()
        with pytest.raises(Killed):
            seek(one, kill_at)
        seek(one)
        assert outcome_of(one) == outcome_of(whole), kill_at


def test_many_kills_on_the_way():
    whole = light()
    seek(whole)
    one, draw = light(), random.Random(3)
    while True:
        try:
            seek(one, draw.randrange(4, 40))
            break
        except Killed:
            continue
    assert outcome_of(one) == outcome_of(whole)


def test_a_search_that_has_ended_asks_nothing_more(whole):
    before = len(whole.requests)
    seek(whole)
    assert len(whole.requests) == before
    assert state(whole)["status"] == "committed"


def test_a_search_may_be_made_longer():
    one, longer = world(steps=1), world(steps=3)
    seek(one)
    one.recipe = recipe(steps=3)
    seek(one)
    seek(longer)
    assert outcome_of(one) == outcome_of(longer)


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        ({"rollouts_per_group": 4}, "rollouts_per_group was 3 and is 4"),
        ({"temperature": 0.5}, "temperature was 1.0 and is 0.5"),
        ({"exploration": 2.0}, "exploration was 1.0 and is 2.0"),
        ({"algorithm": "frozen"}, "algorithm was 'entropic' and is 'frozen'"),
        (
            {"problem": "recipes.ttt_discover.examples.circle_packing.problem:PROBLEM_26"},
            "problem was 'row-pattern-26' and is 'circle-packing-26'",
        ),
    ],
)
def test_a_search_of_another_identity_is_refused(whole, knobs, word):
    before = json.dumps(state(whole))
    other = World(recipe(**knobs), digits, committed=whole.committed)
    with pytest.raises(BadConfig, match="another problem or setting") as caught:
        seek(other)
    assert word in str(caught.value)
    assert "new scenario" in str(caught.value)
    assert json.dumps(state(other)) == before
    assert other.requests == []


def test_a_search_of_another_scenario_is_refused(whole):
    other = World(recipe(), digits, scenario="elsewhere", committed=whole.committed)
    with pytest.raises(BadConfig, match="scenario was 'packing' and is 'elsewhere'"):
        seek(other)


def test_the_learning_rate_may_change_on_the_way():
    one = world(steps=1)
    seek(one)
    one.recipe = recipe(steps=2, policy_lr=1e-3)
    seek(one)
    assert state(one)["step"] == 2


def test_a_step_of_mixed_releases_is_discarded_and_its_solutions_count():
    one = world()
    one.load_of = lambda key, load: load - (key == "1-0-2")
    seek(one)
    assert [row["outcome"] for row in state(one)["history"]] == [
        "published",
        "refused",
        "published",
    ]
    assert {reason for _, reason in one.refused} == {"step_discarded: mixed_releases"}
    assert len(one.refused) == 6
    rewards = [score for score, _ in one.reports.values()]
    assert state(one)["history"][-1]["best"] == max(rewards)


def test_a_frozen_policy_makes_the_same_calls_and_never_trains():
    one = world(algorithm="frozen")
    seek(one)
    one.decide()
    assert one.trained == []
    assert len(one.reports) == 18
    assert {reason for _, reason in one.refused} == {"frozen"}
    assert [row["load_id"] for row in state(one)["history"]] == ["run:0"] * 3
    assert state(one)["archive"]["rollouts"] == 18


def test_a_policy_that_never_answers_rightly_searches_on_from_the_seeds():
    one = world(policy=lambda prompt, seed: "no")
    seek(one)
    assert one.solutions == {}
    assert [row["valid"] for row in state(one)["history"]] == [0.0] * 3
    assert {node["id"] for node in state(one)["archive"]["nodes"]} == {"seed-0", "seed-1"}
    assert {node["visits"] for node in state(one)["archive"]["nodes"]} == {9}
