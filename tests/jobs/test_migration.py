"""A state directory of the version before is taken over once, with jobs in every state."""

import sqlite3

import pytest

from reefcommon.errors import BadConfig
from reefcommon.ids import candidate_id
from reefkit.jobs import schema
from reefkit.jobs.store import JobStore
from tests.harness import support
from tests.harness.support import Published, base_release, first, service
from tests.jobs.old_ledgers import AT, HARNESS, TRAINER, OldLedger
from tests.recipes.samples import sample
from tests.trainer.rig import Rig, release
from tests.trainer.test_domain import BINDING

KEY = BINDING.key
RECIPES = {KEY: "counting"}
ENDS = [
    ("complete", {"proposes": False}, "finished"),
    ("complete", {"proposes": True, "verdict": "published", "content_id": "lora-1"}, "published"),
    ("complete", {"proposes": True, "verdict": "rejected", "content_id": "lora-1"}, "rejected"),
    ("complete", {"proposes": True, "verdict": "pending", "content_id": "lora-1"}, "pending"),
    ("failed", {"reason": "odd"}, "aborted"),
]


def trainer_ledger(home):
    old = OldLedger(home / "ledger.sqlite", TRAINER, KEY)
    old.head(release(5))
    return old


def ended(old):
    for number, (state, body, _) in enumerate(ENDS, start=50):
        samples = "refused" if state == "failed" else "trained"
        told = {"reason": "odd", "told": 1} if state == "failed" else {}
        old.sample(sample(number), samples, f"job-{number}", **told)
        old.job(
            f"job-{number}", state, [f"smp-{number}"], finished_at=AT,
            candidate=candidate_id(f"job-{number}"), **body,
        )  # fmt: skip


def states(store):
    query = "select job_id, state from jobs order by seq"
    return dict(store._rows(query))


def test_jobs_of_every_end_keep_it(tmp_path):
    old = trainer_ledger(tmp_path)
    ended(old)
    old.close()
    for _ in range(2):  # the second time there is nothing to take over
        store = JobStore(tmp_path / "ledger.sqlite", RECIPES)
        assert [*states(store).values()] == [state for _, _, state in ENDS]
        assert store.counts("samples", KEY) == {"used": 4, "refused": 1}
        assert store.used_records(KEY, ["rec-50", "rec-99"]) == {"rec-50"}
        assert store.of_candidate(candidate_id("job-51")).content_id == "lora-1"
        assert store.head("default") == release(5)
        store.close()


@pytest.mark.parametrize(
    "state", ["running", "checkpoint", "stored", "silent checkpoint", "complete"]
)
async def test_an_unfinished_training_job_goes_on_and_nothing_trains_twice(tmp_path, state):
    """The state of a job at its checkpoint was made by a step of the version before."""
    first_life = Rig(tmp_path / "before", every=2 if state == "silent checkpoint" else 1)
    await first_life.publish(5)
    for number in (0, 1):
        await first_life.handlers.on_unit(sample(number))
    await first_life.loop.once()
    job = first_life.store.current(first_life.key)
    assert job is not None
    if state != "running":
        await first_life.loop.once()
    made = first_life.store.current(first_life.key)
    await first_life.stop()

    home, saved = tmp_path / "after", tmp_path / "before" / "states"
    home.mkdir()
    if saved.exists():
        saved.rename(home / "states")
    old = trainer_ledger(home)
    body = {"content_id": "lora-x"} if state == "stored" else {}
    if state != "running":
        body |= {
            "step": made.step, "proposes": made.proposes, "metrics": {"reward_mean": 1.0},
            "finished_at": AT, "candidate": made.candidate_id,
        }  # fmt: skip
    if state == "complete":
        body["content_id"] = "lora-x"
    for number in (0, 1):
        old.sample(sample(number), "trained" if state == "complete" else "taken", job.job_id)
    old.sample(sample(2), "waiting")
    old.job(
        job.job_id,
        state.rpartition(" ")[2].replace("stored", "checkpoint"),
        ["smp-0", "smp-1"],
        **body,
    )
    old.close()

    rig = Rig(home, every=2 if state == "silent checkpoint" else 1)
    await rig.handlers.on_unit(sample(0))  # delivered again
    await rig.settle()
    assert rig.stepped == ([job.job_id] if state == "running" else [])
    if state == "complete":
        assert rig.bus.events == []
    else:
        (step,) = rig.bus.steps
        assert (step.event_id, step.sample_ids) == (job.job_id, ("smp-0", "smp-1"))
    candidates = [] if state in ("complete", "silent checkpoint") else [candidate_id(job.job_id)]
    assert [item.event_id for item in rig.bus.candidates] == candidates
    assert rig.store.counts("samples", KEY) == {"used": 2, "waiting": 1}
    if state != "silent checkpoint":
        await rig.publish(6, "lora-x", candidate=candidate_id(job.job_id))
        assert rig.store.counts("jobs", KEY) == {"published": 1}
    await rig.stop()


async def test_refusals_that_were_not_sent_are_sent(tmp_path):
    old = trainer_ledger(tmp_path)
    unsent = {"reason": "stale", "lag": 3, "refused_at": AT, "keep": True}
    old.sample(sample(0), "refused", **unsent)
    old.sample(sample(1), "refused", reason="stale", told=1)
    old.close()
    store = JobStore(tmp_path / "ledger.sqlite", RECIPES)
    ((_, topic, kind, body),) = store.unsent(9)
    assert (topic, kind) == ("reef.training.v1", "SampleRefused")
    assert BINDING.refusal((sample(0), "stale", 3), sample(0).at).model_dump_json() == body
    assert store.refusals(KEY) == {"stale": 2}
    store.close()


RULE = {
    "op": "create",
    "id": "r",
    "options": {"kind": "rules", "config": {"text": "Be kind."}},
    "reason": "asked",
}
HARNESS_STATES = {
    "open": "open", "proposed": "produced", "awaiting": "announced", "pending": "pending", "conflicted": "conflicted",
    "selected": "published", "rejected": "rejected", "refused": "refused", "empty": "finished", "failed": "aborted",
    "superseded": "aborted",
}  # fmt: skip


@pytest.mark.parametrize("state", HARNESS_STATES)
async def test_a_harness_job_of_every_state_is_taken_over(tmp_path, state):
    old = OldLedger(tmp_path / "ledger.sqlite", HARNESS, support.BINDING.key)
    began = state in ("open", "proposed")
    for number in (1, 2, 3):
        old.sample(support.sample(number), "used", "job-1", keep=began)
    has_content = not began and state not in ("refused", "empty")
    old.job(
        "job-1", state, ["smp-1", "smp-2", "smp-3"], base_release_id="rel-0",
        mutations=[] if state in ("open", "empty") else [RULE],
        content_id="harness-1" if has_content else None, candidate_id="cnd-1" if has_content else None,
    )  # fmt: skip
    old.close()
    out = Published()
    worker = service(tmp_path, out)
    assert states(worker.store) == {"job-1": HARNESS_STATES[state]}
    await worker.handlers.on_publication(first(base_release()))
    await worker.turn()
    candidates = [event.event_id for event in out.events if hasattr(event, "kind")]
    assert candidates == ([candidate_id("job-1")] if began else [])
    assert worker.store.counts("samples", support.BINDING.key) == {"used": 3}
    shown = worker.store.rejections(support.BINDING.key, 9)
    assert len(shown) == (1 if state in ("rejected", "refused") else 0)
    worker.store.close()


def test_a_migration_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    old = trainer_ledger(tmp_path)
    ended(old)
    old.close()
    path = tmp_path / "ledger.sqlite"
    monkeypatch.setattr(schema, "_send_refusals", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        JobStore(path, RECIPES)
    db = sqlite3.connect(path)
    assert db.execute("select count(*) from jobs where state = 'complete'").fetchone() == (4,)
    assert {row[1] for row in db.execute("pragma table_info(samples)")} >= {"told", "lag"}
    db.close()
    monkeypatch.undo()
    JobStore(path, RECIPES).close()


def test_a_ledger_older_than_ages_is_taken_over(tmp_path):
    """Its samples have no age, so that they are never forgotten."""
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute(
            "create table samples (seq integer primary key autoincrement, binding text not null, sample_id text not null, state text not null,"
            " body blob, reason text, lag integer, refused_at text, told integer not null default 0, job_id text, unique (binding, sample_id))"
        )
        db.execute(
            "create table jobs (seq integer primary key autoincrement, job_id text unique not null, binding text not null, state text not null,"
            " candidate_id text, body text not null)"
        )
        db.execute(
            "insert into samples (binding, sample_id, state, told) values (?, 'smp-0', 'refused', 1)",
            (KEY,),
        )
    db.close()
    store = JobStore(tmp_path / "ledger.sqlite", RECIPES)
    assert store.forget(KEY, 1 << 60, (), 0) == {"samples": 0, "jobs": 0}
    assert store.counts("samples", KEY) == {"refused": 1}
    store.close()


def test_a_ledger_of_a_newer_reef_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "ledger.sqlite"
    JobStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"pragma user_version = {schema.VERSION + 1}")
    with pytest.raises(BadConfig, match=r"ledger.sqlite is of a newer Reef .*: install it again"):
        JobStore(path)
    with sqlite3.connect(path) as db:
        assert db.execute("pragma user_version").fetchone() == (schema.VERSION + 1,)
