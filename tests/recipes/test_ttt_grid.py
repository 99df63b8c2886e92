"""The batch of TTT-Discover: the complete grid of the oldest step, or a reason."""

import random

import pytest

from recipes.ttt_discover.grid import Place, metadata, oldest_grid, place_of
from recipes.ttt_discover.knobs import Knobs
from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from reefcommon.events import Sampling
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision
from tests.recipes.samples import sample

KNOBS = Knobs(groups_per_step=2, rollouts_per_group=3)
NOW = LoadId("run", 5)


def unit(step, group, rollout, **changes):
    place = Place(step, group, rollout)
    fields = {
        "event_id": f"{step}-{group}-{rollout}",
        "metadata": metadata(place, KNOBS),
        "score": group + rollout / 10,
    }
    return sample(**(fields | changes))


def grid(step=0, **changes):
    return [unit(step, g, r, **changes) for g in range(2) for r in range(3)]


def reasons(decision):
    return {one.event_id: reason for one, reason, _ in decision.refused}


def test_a_complete_grid_is_a_batch_in_the_order_of_its_places():
    units = grid()
    shuffled = random.Random(1).sample(units, len(units))
    assert oldest_grid(shuffled, NOW, KNOBS) == Decision(tuple(units))


def test_an_incomplete_grid_waits():
    assert oldest_grid(grid()[:-1], NOW, KNOBS) == Decision()


def test_the_oldest_complete_step_goes_first_and_older_rests_never_will():
    decision = oldest_grid([*grid(2), *grid(1), *grid(0)[:2]], NOW, KNOBS)
    assert [one.event_id for one in decision.batch] == [one.event_id for one in grid(1)]
    assert reasons(decision) == {"0-0-0": "incomplete_step", "0-0-1": "incomplete_step"}
    # A later step that is not complete refuses nothing.
    assert oldest_grid([*grid(1)[:1], *grid(0)[:2]], NOW, KNOBS) == Decision()


def test_the_first_report_of_a_place_counts():
    late = unit(0, 1, 1, event_id="late", score=9.0)
    decision = oldest_grid([*grid(), late], NOW, KNOBS)
    assert len(decision.batch) == 6
    assert reasons(decision) == {"late": "place_taken"}


def test_a_step_of_mixed_releases_is_discarded_whole():
    units = grid()
    units[4] = unit(0, 1, 1, load_id="run:4")
    decision = oldest_grid(units, NOW, KNOBS)
    assert decision.batch == ()
    assert set(reasons(decision).values()) == {"step_discarded: mixed_releases"}
    assert len(decision.refused) == 6


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"untrainable": "no_logprobs"}, "untrainable: no_logprobs"),
        ({"score": None}, "no_score"),
        ({"sampling": (Sampling(top_p=0.9),)}, "truncated_sampling: top_p"),
    ],
)
def test_a_flaw_of_a_rollout_discards_its_step(changes, reason):
    units = grid()
    units[2] = unit(0, 0, 2, **changes)
    decision = oldest_grid(units, NOW, KNOBS)
    assert set(reasons(decision).values()) == {f"step_discarded: {reason}"}


def test_stale_grids_are_discarded_and_unknown_weights_wait():
    stale = oldest_grid(grid(), LoadId("run", 6), KNOBS)
    assert set(reasons(stale).values()) == {"step_discarded: stale"}
    assert {lag for _, _, lag in stale.refused} == {1}
    assert oldest_grid(grid(), LoadId("run", 4), KNOBS) == Decision()
    late = Knobs(groups_per_step=2, rollouts_per_group=3, max_staleness=1)
    assert len(oldest_grid(grid(), LoadId("run", 6), late).batch) == 6


def test_a_mask_is_corrected():
    mask = (Sampling(allowed_token_ids=(3, 4, 5)),)
    assert len(oldest_grid(grid(sampling=mask), NOW, KNOBS).batch) == 6


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": None}, "no_place"),
        ({"step": -1}, "no_place"),
        ({"group": "0"}, "no_place"),
        ({"rollout": True}, "no_place"),
        ({"rollout": 1.0}, "no_place"),
        ({"group": 2}, "outside_the_grid"),
        ({"rollout": 3}, "outside_the_grid"),
        ({"groups_per_step": 3}, "other_grid"),
        ({"rollouts_per_group": None}, "other_grid"),
        ({"algorithm": "grpo"}, "other_algorithm"),
        ({"comparison_set": "tttd-step-0-group-1"}, "other_comparison_set"),
    ],
)
def test_a_report_without_a_place_in_the_grid_is_refused(changes, reason):
    stated = metadata(Place(0, 0, 0), KNOBS) | changes
    assert place_of(stated, KNOBS) == reason
    (refusal,) = oldest_grid([sample(metadata=stated)], NOW, KNOBS).refused
    assert refusal[1:] == (reason, None)


def test_what_is_optional_may_be_left_out():
    stated = metadata(Place(3, 1, 2), KNOBS)
    assert stated["comparison_set"] == "tttd-step-3-group-1"
    del stated["algorithm"], stated["comparison_set"]
    assert place_of(stated, KNOBS) == Place(3, 1, 2)
    assert place_of(stated | {"algorithm": "ttt-discover"}, KNOBS) == Place(3, 1, 2)


def test_a_frozen_policy_learns_nothing():
    recipe = TTTDiscoverRecipe(KNOBS.model_copy(update={"algorithm": "frozen"}))
    decision = recipe.decide(grid(), NOW)
    assert decision.batch == ()
    assert set(reasons(decision).values()) == {"frozen"}
