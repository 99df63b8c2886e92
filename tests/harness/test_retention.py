"""What the harness service forgets, and that a forgotten window is never proposed from again."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from reefcommon.errors import Unavailable
from reefcommon.events import CandidateProposed, SampleRefused, utc_now
from reefcommon.ids import time_ordered_hex
from reefcommon.settings import HostSettings
from reefkit.jobs.retention import RejectedContents, Retention
from tests.harness.support import (
    BINDING,
    Published,
    base_release,
    first,
    published,
    rejected,
    sample,
    service,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def said(number: int, day: float, words: str = "Please greet me with Hello first."):
    ms = int((T0 + timedelta(days=day)).timestamp() * 1000)
    return sample(number, words).model_copy(
        update={"record_ids": (f"rec-{time_ordered_hex(ms, bytes([number] * 10))}-0a0b",)}
    )


@pytest.fixture
async def made(tmp_path):
    out = Published()
    worker = service(tmp_path, out)
    await worker.handlers.on_publication(first(base_release()))
    yield worker, out, worker.store
    worker.store.close()


class Heads:
    """ReleaseHeads as far as they are asked."""

    def __init__(self, *chain, pending=()) -> None:
        self.releases, self.waiting = chain, pending

    async def chain(self, scenario, *, limit=100):
        return list(self.releases)

    async def pending(self, scenario):
        return list(self.waiting)


class Dropping:
    """ArtifactStore that remembers what was dropped."""

    def __init__(self) -> None:
        self.dropped = []

    def drop(self, contents, scenario):
        self.dropped += contents


def retention(worker, now, heads=None, store=None):
    rejected = RejectedContents(
        worker.store, store or Dropping(), heads or Heads(base_release()), worker.kit.storing
    )
    settings = HostSettings(settled_kept_s=30 * 86400.0, rejected_kept_s=7 * 86400.0)
    return Retention(
        "harness", worker.handlers.loops, worker.trees, rejected, settings, lambda: now
    )


async def window(worker, out, day, number, words):
    for offset in range(3):
        await worker.handlers.on_unit(said(number + offset, day, words))
    await worker.turn()
    return out.of(CandidateProposed)[-1]


async def test_ended_windows_are_forgotten_and_their_samples_are_refused_when_they_come_again(made):
    worker, out, ledger = made
    candidate = await window(worker, out, 0, 0, "Please greet me with Hello first.")
    assert (await retention(worker, T0 + timedelta(days=300)).round())["jobs"] == 0, (
        "it has no verdict yet"
    )
    head = published(candidate, base_release())
    await worker.handlers.on_publication(head)
    second = await window(worker, out, 2, 10, "Be brief.")
    await worker.handlers.on_unit(said(30, 2, "Nobody else says this."))
    assert (await retention(worker, T0 + timedelta(days=20)).round())["jobs"] == 0
    assert await retention(worker, T0 + timedelta(days=300)).round() == {
        "samples": 3,
        "jobs": 1,
        "trees": 0,
        "contents": 0,
    }
    assert ledger.counts("samples", BINDING.key) == {"used": 3, "waiting": 1}
    assert ledger.counts("jobs", BINDING.key) == {"announced": 1}
    again = said(0, 0)
    await worker.handlers.on_unit(again)
    await worker.handlers.on_unit(again)
    await worker.handlers.on_publication(rejected(second))
    await worker.turn()
    assert [(event.sample_id, event.reason) for event in out.of(SampleRefused)] == [
        ("smp-0", "too_old")
    ]
    assert len(out.of(CandidateProposed)) == 2
    assert ledger.next_step(BINDING.key) == 3, "steps go on counting"


async def test_what_a_recipe_is_shown_as_its_mistakes_stays(made):
    worker, out, ledger = made
    await worker.handlers.on_publication(rejected(await window(worker, out, 0, 0, "Rule one.")))
    await worker.handlers.on_publication(rejected(await window(worker, out, 1, 10, "Rule two.")))
    assert (await retention(worker, T0 + timedelta(days=300)).round())["jobs"] == 0
    assert len(ledger.rejections(BINDING.key, 9)) == 2


async def test_trees_that_nothing_starts_from_are_removed(made):
    worker, out, _ = made
    candidate = await window(worker, out, 0, 0, "Please greet me with Hello first.")
    await worker.handlers.on_publication(published(candidate, base_release()))
    await window(worker, out, 1, 10, "Be brief.")
    trees = worker.trees.root
    (trees / "harness-old").mkdir()
    assert (await retention(worker, T0).round())["trees"] == 1
    assert {path.name for path in trees.iterdir()} == {candidate.content_id}


async def lose(worker, out, number, **how):
    """One window whose candidate comes to nothing. Returns its content."""
    candidate = await window(worker, out, number, 10 * number, f"Rule {number}.")
    await worker.handlers.on_publication(rejected(candidate, **how))
    return candidate.content_id


async def test_contents_of_lost_candidates_go_once_nothing_names_them(made):
    """Whether it lost on its merits or could not be evaluated; not what is still under evaluation, or what a release names."""
    worker, out, ledger = made
    contents = [
        await lose(worker, out, 0),
        await lose(worker, out, 1, verdict="evaluation_failed"),
        await lose(worker, out, 2),
    ]
    contents += [
        await lose(worker, out, 3),
        (await window(worker, out, 4, 40, "Rule 4.")).content_id,
    ]
    assert len(set(contents)) == 5
    served = base_release().model_copy(update={"contents": {"harness": contents[2]}})
    waiting = base_release().model_copy(update={"release_id": "rel-p", "content_id": contents[3]})
    store, heads = Dropping(), Heads(served, pending=(waiting,))
    soon, later = utc_now() + timedelta(days=6), utc_now() + timedelta(days=8)
    assert (await retention(worker, soon, heads, store).round())["contents"] == 0, "not old enough"
    assert (await retention(worker, later, heads, store).round())["contents"] == 2
    assert sorted(store.dropped) == sorted(contents[:2])
    assert (await retention(worker, later, heads, store).round())["contents"] == 0
    assert (await retention(worker, later, Heads(served), store).round())["contents"] == 1, (
        "the person decided against it"
    )
    assert store.dropped[2:] == [contents[3]]
    assert ledger.contents_in_use("default") == {contents[4]}


async def test_nothing_is_dropped_while_the_chain_is_not_whole(made):
    """Heads that were lost are rebuilt from the log: until then nobody can say what a release names."""
    worker, out, _ = made
    await lose(worker, out, 0)
    await worker.handlers.on_publication(
        published(None, base_release(), kind="lora", content="lora-1")
    )
    store = Dropping()
    for heads in (Heads(), Heads(base_release())):
        with pytest.raises(Unavailable, match="not whole"):
            await retention(worker, utc_now() + timedelta(days=8), heads, store).round()
    assert store.dropped == []


async def test_a_content_that_is_made_again_while_it_is_dropped_is_there(made, tmp_path):
    """The store has it already when it is made again, and drops it before the job says that it uses it: were the two not kept apart."""
    worker, out, ledger = made
    store = worker.artifacts
    content = await lose(worker, out, 0)
    ledger.rejections = lambda binding, limit: []  # as a recipe that does not mind its mistakes
    dropping = retention(worker, utc_now() + timedelta(days=8), store=store)
    rounds, put, loop = [], store.put, asyncio.get_running_loop()

    def put_and_meet_a_round(*tree):
        stored = put(*tree)
        rounds.append(asyncio.run_coroutine_threadsafe(dropping.round(), loop))
        with suppress(TimeoutError):
            rounds[0].result(0.5)  # as far as it comes before the job goes on
        return stored

    store.put = put_and_meet_a_round
    again = await window(worker, out, 1, 10, "Rule 0.")
    assert again.content_id == content
    await asyncio.wrap_future(rounds[0])
    assert store.get(content, "default", tmp_path / "there").content_id == content
