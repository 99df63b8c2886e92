"""What the harness service forgets, and that a forgotten window is never proposed from again."""

import os
import time
from datetime import UTC, datetime, timedelta

import pytest

from reefcommon.events import CandidateProposed, SampleRefused
from reefcommon.ids import time_ordered_hex
from services.harness.retention import TREE_KEPT_S, Retention
from tests.harness.support import BINDING, Published, base_release, first, published, rejected, sample, service

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def said(number: int, day: float, words: str = "Please greet me with Hello first."):
    ms = int((T0 + timedelta(days=day)).timestamp() * 1000)
    return sample(number, words).model_copy(update={"record_ids": (f"rec-{time_ordered_hex(ms, bytes([number] * 10))}-0a0b",)})


@pytest.fixture
async def made(tmp_path):
    out = Published()
    worker = service(tmp_path, out)
    await worker.handlers.on_publication(first(base_release()))
    yield worker, out, worker.handlers.inbox
    worker.handlers.inbox.close()


def retention(worker, now):
    return Retention((BINDING,), worker.handlers.inbox, worker.handlers.trees, 30 * 86400.0, 1.0, lambda: now)


async def window(worker, out, day, number, words):
    for offset in range(3):
        await worker.handlers.on_sample(said(number + offset, day, words))
    while await worker.handlers.advance(BINDING):
        pass
    return out.of(CandidateProposed)[-1]


async def test_ended_windows_are_forgotten_and_their_samples_are_refused_when_they_come_again(made):
    worker, out, ledger = made
    candidate = await window(worker, out, 0, 0, "Please greet me with Hello first.")
    assert retention(worker, T0 + timedelta(days=300)).round()["jobs"] == 0, "it has no verdict yet"
    head = published(candidate, base_release())
    await worker.handlers.on_publication(head)
    second = await window(worker, out, 2, 10, "Be brief.")
    await worker.handlers.on_sample(said(30, 2, "Nobody else says this."))
    assert retention(worker, T0 + timedelta(days=20)).round()["jobs"] == 0
    assert retention(worker, T0 + timedelta(days=300)).round() == {"samples": 3, "jobs": 1, "trees": 0}
    assert ledger.summary()[BINDING.key] == {"samples_used": 3, "samples_waiting": 1, "jobs_awaiting": 1}
    again = said(0, 0)
    await worker.handlers.on_sample(again)
    await worker.handlers.on_sample(again)
    await worker.handlers.on_publication(rejected(second))
    while await worker.handlers.advance(BINDING):
        pass
    assert [(event.sample_id, event.reason) for event in out.of(SampleRefused)] == [("smp-0", "too_old")]
    assert len(out.of(CandidateProposed)) == 2
    assert ledger.last_step(BINDING.key) == 2, "steps go on counting"


async def test_what_a_recipe_is_shown_as_its_mistakes_stays(made):
    worker, out, ledger = made
    await worker.handlers.on_publication(rejected(await window(worker, out, 0, 0, "Rule one.")))
    await worker.handlers.on_publication(rejected(await window(worker, out, 1, 10, "Rule two.")))
    assert retention(worker, T0 + timedelta(days=300)).round()["jobs"] == 0
    assert len(ledger.rejected(BINDING.key)) == 2


async def test_trees_that_nothing_starts_from_are_removed(made):
    worker, out, _ = made
    candidate = await window(worker, out, 0, 0, "Please greet me with Hello first.")
    await worker.handlers.on_publication(published(candidate, base_release()))
    await window(worker, out, 1, 10, "Be brief.")
    trees = worker.handlers.trees
    (trees / "harness-old").mkdir()
    (trees / "harness-young").mkdir()
    for path in trees.iterdir():
        if path.name != "harness-young":
            os.utime(path, (time.time() - 2 * TREE_KEPT_S,) * 2)
    assert retention(worker, T0).round()["trees"] == 1
    assert {path.name for path in trees.iterdir()} == {candidate.content_id, "harness-young"}
