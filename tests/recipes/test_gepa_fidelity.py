"""GEPA beside PyPI's `gepa`: the same seed gives the same candidates, parents and minibatches."""

from types import SimpleNamespace

import gepa
import pytest
from gepa.core.adapter import EvaluationBatch

from recipes.gepa.search import Search
from tests.recipes.gepa_world import (
    TRAIN,
    VALIDATION,
    Context,
    history,
    recipe,
    rewritten,
    score,
)


class Adapter:
    """The synthetic task, as `gepa` asks for it."""

    def evaluate(self, batch, candidate, capture_traces=False):
        scores = [score(candidate, task) for task in batch]
        traces = list(batch) if capture_traces else None
        return EvaluationBatch(outputs=list(batch), scores=scores, trajectories=traces)

    def make_reflective_dataset(self, candidate, eval_batch, components_to_update):
        return {
            name: [{"task": task} for task in eval_batch.trajectories]
            for name in components_to_update
        }

    def propose_new_texts(self, candidate, reflective_dataset, components_to_update):
        return {
            name: rewritten(
                name, candidate[name], [row["task"] for row in reflective_dataset[name]]
            )
            for name in components_to_update
        }


class Told:
    """The minibatches that lead to a reflection."""

    def __init__(self):
        self.minibatches, self.batch = [], None

    def on_minibatch_sampled(self, event):
        self.batch = [TRAIN[number] for number in event["minibatch_ids"]]

    def on_proposal_start(self, event):
        self.minibatches.append(self.batch)


def theirs(seed, calls, **options):
    told = Told()
    found = gepa.optimize(
        seed_candidate={"rules": "", "skill": ""},
        trainset=TRAIN,
        valset=VALIDATION,
        adapter=Adapter(),
        max_metric_calls=calls,
        seed=seed,
        callbacks=[told],
        raise_on_exception=True,
        logger=SimpleNamespace(log=lambda _: None),
        **options,
    )
    parents = [each[0] for each in found.parents]
    scores = [[each[n] for n in range(len(VALIDATION))] for each in found.val_subscores]
    return list(zip(found.candidates, parents, scores, strict=True)), told, found.total_metric_calls


async def ours(seed, calls, **knobs):
    ctx = Context()
    made = recipe(seed=seed, max_metric_calls=calls, iterations=1000, **knobs)
    await made.propose(ctx, (), (), ())
    spent = ctx.store.values["search"]["search"]["spent"]
    return history(ctx.store), ctx, spent


@pytest.mark.parametrize("seed", range(6))
async def test_the_search_is_that_of_gepa(seed):
    expected, told, calls = theirs(seed, 900)
    found, ctx, spent = await ours(seed, 900)
    assert found == expected
    assert ctx.minibatches == told.minibatches
    assert spent == calls
    assert len(found) > 12, "the archive grew"
    assert len({each[1] for each in found}) > 4, "from several parents"


@pytest.mark.parametrize("size", [2, 5])
async def test_minibatches_of_another_size_agree_too(size):
    expected, told, _ = theirs(1, 400, reflection_minibatch_size=size)
    found, ctx, _ = await ours(1, 400, minibatch_size=size)
    assert (found, ctx.minibatches) == (expected, told.minibatches)


async def test_hill_climbing_is_that_of_gepa():
    expected, told, _ = theirs(2, 400, candidate_selection_strategy="current_best")
    found, ctx, _ = await ours(2, 400, select="best")
    assert (found, ctx.minibatches) == (expected, told.minibatches)


async def test_a_perfect_minibatch_is_passed_over_as_in_gepa():
    expected, told, _ = theirs(3, 600, perfect_score=0.4)
    found, ctx, _ = await ours(3, 600, perfect_score=0.4)
    assert (found, ctx.minibatches) == (expected, told.minibatches)
    epochs = Search.restore(ctx.store.values["search"]["search"])
    assert epochs.iteration + 1 > len(ctx.minibatches), "some iterations had no reflection"
