"""`ctx.store`: values by key, saved with the result of a call, and a change in between is found."""

import sqlite3
from dataclasses import replace

import pytest

from reefcommon import topics
from reefkit.jobs.model import open_job
from reefkit.jobs.recipe_store import CallKey, StateConflict
from reefkit.jobs.schema import VERSION
from reefkit.jobs.store import JobStore
from reefkit.recipes.state import MAX_KEY_CHARS, BufferedState
from reefkit.retention import TOO_OLD
from tests.jobs.version_two import version_two
from tests.recipes.samples import AT, sample
from tests.trainer.rig import release
from tests.trainer.test_domain import BINDING

KEY = BINDING.key


@pytest.fixture
def store(tmp_path):
    made = JobStore(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def state_of(store, binding=KEY):
    return BufferedState(store, binding)


def test_values_are_seen_by_their_own_call_and_saved_together(store, tmp_path):
    state = state_of(store)
    assert state.get("front", "none") == "none"
    state.put("front", {"a": [1, 2.5, None, "ü"]})
    state.put_blob("ema", b"\x00\x01")
    state.put("front/2", [])
    assert state.get("front") == {"a": [1, 2.5, None, "ü"]}
    assert state.keys("front") == ["front", "front/2"]
    assert state_of(store).keys() == []
    store.apply(state.effects())
    store.close()
    again = JobStore(tmp_path / "ledger.sqlite")
    state = state_of(again)
    assert (state.blob("ema"), state.get("ema"), state.keys()) == (
        b"\x00\x01", None, ["ema", "front", "front/2"],
    )  # fmt: skip
    state.drop("front")
    assert state.keys("front") == ["front/2"]
    again.apply(state.effects())
    assert state_of(again).get("front") is None
    assert state_of(again, "other/binding").keys() == []
    again.close()


def test_a_value_is_a_copy(store):
    state, value = state_of(store), [1]
    state.put("list", value)
    value.append(2)
    state.get("list").append(3)
    assert state.get("list") == [1]


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {1: "a"}, {"a": object()}, AT, {1, 2}]
)
def test_a_value_that_would_come_back_as_another_is_refused(store, value):
    with pytest.raises((TypeError, ValueError)):
        state_of(store).put("k", value)


@pytest.mark.parametrize("key", ["", "k" * (MAX_KEY_CHARS + 1), 7])
def test_a_key_is_a_short_text(store, key):
    with pytest.raises(ValueError, match="a key of ctx"):
        state_of(store).put(key, 1)


def test_the_store_of_a_recipe_has_a_limit_in_all(store, monkeypatch):
    monkeypatch.setattr("reefkit.recipes.state.MAX_TOTAL_BYTES", 10)
    state = state_of(store)
    state.put_blob("a", b"12345")
    state.put_blob("a", b"123456")
    with pytest.raises(ValueError, match=r"'b'.*at most 0 MB of a recipe: drop keys"):
        state.put_blob("b", b"12345")
    store.apply(state.effects())
    state = state_of(store)
    state.put_blob("a", b"1234567890")  # in place of the stored value
    state.drop("a")
    state.put_blob("b", b"1234567890")
    store.apply(state.effects())
    state.saved()
    with pytest.raises(ValueError, match="drop keys"):
        state.put("c", 1)
    state_of(store, "other/binding").put_blob("b", b"12345")


@pytest.mark.parametrize("read", ["value", "absent", "keys"])
def test_a_change_of_something_that_was_read_is_found(store, read):
    first = state_of(store)
    first.put("n", 1)
    store.apply(first.effects())
    mine, other = state_of(store), state_of(store)
    {"value": mine.get, "absent": mine.get, "keys": mine.keys}[read](
        {"value": "n", "absent": "m", "keys": ""}[read]
    )
    mine.put("mine", 1)
    other.put({"value": "n", "absent": "m", "keys": "z"}[read], 2)
    store.apply(other.effects())
    with pytest.raises(StateConflict):
        store.apply(mine.effects())
    assert state_of(store).get("mine") is None
    store.apply(mine.effects(), check=False)
    assert state_of(store).get("mine") == 1


def test_a_value_that_was_dropped_and_made_again_is_another(store):
    mine, other = state_of(store), state_of(store)
    other.put("n", 1)
    store.apply(other.effects())
    assert mine.get("n") == 1
    for change in ("drop", "put"):
        other = state_of(store)
        other.drop("n") if change == "drop" else other.put("n", 1)
        store.apply(other.effects())
    mine.put("m", 1)
    with pytest.raises(StateConflict):
        store.apply(mine.effects())


def test_writes_of_a_job_are_saved_with_it_or_not_at_all(store):
    item = sample(0)
    too_old = BINDING.refusal((item, TOO_OLD, None), AT)
    store.put(KEY, item, (too_old, topics.TRAINING), text_only=False)
    job = open_job(BINDING, "lora", release(5), (item,), step=1, plan={}, now=AT)
    store.open(job, (item,), once_per_record=False)
    store.begin_call(CallKey(KEY, job.job_id, "r", 0), "judge", {})
    state, other = state_of(store), state_of(store)
    state.put("n", state.get("n", 0) + 1)
    other.put("n", 7)
    store.apply(other.effects())
    with pytest.raises(StateConflict):
        store.save(replace(job, state="produced"), expected="open", effects=state.effects("x"))
    assert store.current(KEY).state == "open"
    again = state_of(store)
    again.put("n", again.get("n") + 1)
    assert store.asked_for(KEY, job.job_id) == (1, 0)
    store.save(replace(job, state="produced"), expected="open", effects=again.effects(job.job_id))
    assert state_of(store).get("n") == 8
    assert store.asked_for(KEY, job.job_id) == (0, 0)


def test_rows_for_people_hold_no_blob(store):
    state = state_of(store)
    state.put("n", [1])
    state.put_blob("b", b"12345")
    store.apply(state.effects())
    assert store.state_rows(KEY) == [
        {"key": "b", "version": 1, "json": None, "bytes": 5},
        {"key": "n", "version": 1, "json": "[1]", "bytes": 3},
    ]


def test_a_file_of_version_2_is_taken_over_with_everything_in_it(tmp_path):
    path = tmp_path / "ledger.sqlite"
    version_two(path, KEY)
    for _ in range(2):
        store = JobStore(path)
        assert store._rows("pragma user_version") == [(VERSION,)]
        assert store.counts("samples", KEY) == {"waiting": 1, "used": 1}
        assert [unit.event_id for unit in store.window(KEY, 9)] == ["smp-1"]
        assert store.head("default") == release(5)
        assert store.token == 4
        assert [row[0] for row in store.unsent(9)] == [1]
        state = state_of(store)
        state.put("n", state.get("n", 0) + 1)
        store.apply(state.effects())
        store.close()
    store = JobStore(path)
    assert state_of(store).get("n") == 2
    store.close()


def test_a_file_of_version_3_gets_the_table_of_proposals(tmp_path):
    path = tmp_path / "ledger.sqlite"
    JobStore(path).close()
    db = sqlite3.connect(path)
    db.executescript("drop table proposals; pragma user_version = 3;")
    db.close()
    store = JobStore(path)
    state = state_of(store)
    state.put("n", 1)
    store.apply(state.effects())
    assert (state_of(store).get("n"), store.proposal_counts("default")) == (1, {})
    store.close()


def test_a_migration_from_version_2_is_whole_or_not_at_all(tmp_path, monkeypatch):
    from reefkit.jobs import schema

    path = tmp_path / "ledger.sqlite"
    version_two(path, KEY)
    broken = schema._RECIPE_TABLES + ";\ncreate table samples (seq integer);\n"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_RECIPE_TABLES", broken)
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            JobStore(path)
    db = sqlite3.connect(path)
    assert db.execute("pragma user_version").fetchone() == (2,)
    assert not db.execute("select 1 from sqlite_master where name = 'state'").fetchone()
    db.close()
    JobStore(path).close()
