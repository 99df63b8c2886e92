"""The archive of TTT-Discover against the rule written out by hand."""

import json
import math
import random

import pytest

from recipes.ttt_discover.archive import Archive, Solution, TooFewLineages


def found(value, text=None):
    return Solution(value, text if text is not None else f"t{value}")


def archive(seeds=2, **options):
    return Archive(seeds, **options)


def named(archive, text):
    return next(node for node in archive.nodes.values() if node.solution.text == text)


def naive_scores(archive):
    """Q + c * scale * P * sqrt(1 + T) / (1 + n), each part from its words."""
    nodes = list(archive.nodes.values())
    count = len(nodes)
    scores = {}
    for place, node in enumerate(nodes):
        better = sum(
            other.value > node.value or (other.value == node.value and at < place)
            for at, other in enumerate(nodes)
        )
        prior = (count - better) / sum(range(1, count + 1))
        values = [n.value for n in nodes if not n.seed] or [n.value for n in nodes]
        scale = max(max(values) - min(values), 1e-6)
        q = node.best_child if node.visits and node.best_child is not None else node.value
        bonus = archive.exploration * scale * prior * math.sqrt(1 + archive.rollouts)
        scores[node.id] = q + bonus / (1 + node.visits)
    return scores


def grown(seed, steps=6, seeds=3, **options):
    draw, one = random.Random(seed), archive(seeds, **options)
    for step in range(steps):
        for parent in one.select(seeds):
            tried = [
                found(round(draw.random(), 2), f"{draw.randrange(60)}")
                if draw.random() < 0.8
                else None
                for _ in range(4)
            ]
            one.expand(parent.id, tried, step)
        one.prune()
    return one


@pytest.mark.parametrize("seed", range(8))
def test_scores_are_the_rule(seed):
    one = grown(seed, exploration=0.7)
    assert one.scores() == pytest.approx(naive_scores(one))


def test_the_first_step_takes_the_seeds_in_order():
    one = archive(3)
    assert [node.id for node in one.select(3)] == ["seed-0", "seed-1", "seed-2"]
    assert one.best() is None


def test_known_scores_of_a_small_archive():
    one = archive(1)
    one.expand("seed-0", [found(1.0), found(3.0), None, None], 0)
    one.prune()
    # Ranks: 3.0, 1.0, seed: P = 3/6, 2/6, 1/6. scale = 3 - 1, sqrt(1 + 4).
    assert one.scores() == pytest.approx(
        {
            named(one, "t3.0").id: 3.0 + 2 * 0.5 * math.sqrt(5),
            named(one, "t1.0").id: 1.0 + 2 / 3 * math.sqrt(5),
            "seed-0": 3.0 + 2 / 6 * math.sqrt(5) / 5,
        }
    )


def test_a_parent_counts_as_its_best_child_even_if_that_is_worse():
    one = archive(1)
    one.expand("seed-0", [found(5.0)], 0)
    top = named(one, "t5.0")
    one.expand(top.id, [found(2.0), found(1.0)], 1)
    assert top.promise == 2.0
    failed = named(one, "t2.0")
    one.expand(failed.id, [None, None], 2)
    assert (failed.promise, failed.visits) == (2.0, 2)


def test_every_rollout_counts_for_the_parent_and_all_above_it():
    one = archive(2)
    one.expand("seed-0", [found(1.0), None, None], 0)
    child = named(one, "t1.0")
    one.expand(child.id, [found(2.0), None], 1)
    grandchild = named(one, "t2.0")
    one.expand(grandchild.id, [None], 2)
    visits = {node.id: node.visits for node in one.nodes.values()}
    assert visits == {"seed-0": 6, "seed-1": 0, child.id: 3, grandchild.id: 1}
    assert one.rollouts == 6


@pytest.mark.parametrize("seed", range(8))
def test_no_parent_of_a_step_descends_from_another(seed):
    one = grown(seed)
    picked = one.select(3)
    for node in picked:
        above = node.parent
        while above is not None:
            assert above not in {other.id for other in picked}
            above = one.nodes[above].parent
    scores = one.scores()
    # A better node that was not picked is in the lineage of one that was.
    worst = min(scores[node.id] for node in picked)
    lineages = set().union(*(one._lineage(node) for node in picked))
    assert all(scores[node.id] <= worst for node in one.nodes.values() if node.id not in lineages)


def test_too_few_lineages_is_an_error():
    one = archive(2)
    with pytest.raises(TooFewLineages, match="3 parents wanted, 2 lineages"):
        one.select(3)


def test_two_children_of_a_parent_are_kept_over_all_its_steps():
    one = archive(1)
    one.expand("seed-0", [found(1.0), found(2.0), found(3.0)], 0)
    one.prune()
    assert {node.value for node in one.nodes.values() if not node.seed} == {3.0, 2.0}
    one.expand("seed-0", [found(2.5)], 1)
    one.prune()
    assert {node.value for node in one.nodes.values() if not node.seed} == {3.0, 2.5}
    assert one.nodes["seed-0"].best_child == 3.0


def test_a_child_whose_parent_is_gone_becomes_a_root():
    one = archive(1)
    one.expand("seed-0", [found(1.0), found(2.0)], 0)
    weak = named(one, "t1.0")
    one.expand(weak.id, [found(9.0)], 1)
    one.expand("seed-0", [found(3.0)], 1)
    one.prune()
    assert weak.id not in one.nodes
    assert named(one, "t9.0").parent is None
    assert one.best() is named(one, "t9.0")


def test_equal_texts_are_one_solution_and_still_count():
    one = archive(1)
    one.expand("seed-0", [found(1.0, "same"), found(1.0, "same")], 0)
    first = named(one, "same")
    one.expand(first.id, [found(1.0, "same")], 1)
    one.prune()
    assert len(one.nodes) == 2
    assert (first.visits, first.best_child, one.rollouts) == (1, 1.0, 3)


def test_a_full_archive_keeps_the_best_and_all_seeds():
    one = archive(2, capacity=5)
    for step in range(4):
        for seed in ("seed-0", "seed-1"):
            parent = max(
                (n for n in one.nodes.values() if n.id == seed or n.parent == seed),
                key=lambda node: node.step,
            )
            one.expand(parent.id, [found(step + len(seed) / 10, f"{seed} {step}")], step)
        one.prune()
    kept = [node for node in one.nodes.values() if not node.seed]
    assert len(one.nodes) == 5
    assert sorted(node.step for node in kept) == [2, 3, 3]
    assert {"seed-0", "seed-1"} <= set(one.nodes)


@pytest.mark.parametrize("seed", range(4))
def test_the_state_is_json_and_gives_the_same_archive(seed):
    one = grown(seed)
    again = archive(3)
    again.restore(json.loads(json.dumps(one.state())))
    assert again.state() == one.state()
    assert again.scores() == one.scores()
    assert [node.id for node in again.select(3)] == [node.id for node in one.select(3)]
