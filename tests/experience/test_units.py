"""Turns and ended sessions as units."""

from datetime import timedelta
from typing import Any

from services.experience.domain.line import RunEnd, TurnEnd
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment
from services.experience.domain.units import is_side_call, session_units, turn_unit
from tests.experience.factory import T0, assistant, inference, user

AT = T0 + timedelta(seconds=9)


def recorded(sequence: int, *args: Any, retry_of: str | None = None, **fields: Any) -> Record:
    event = inference(*args, record_id=f"rec-{sequence}", at=sequence, **fields)
    return Record(event, "digest", Assignment("ses-1", sequence - 1, sequence, retry_of))


def ending(*records: Record) -> RunEnd:
    return RunEnd(tuple(record.event.event_id for record in records), "closed", AT)


def test_a_turn_has_the_exchange_and_what_followed():
    record = recorded(1, (user("a"),), "b", prompt=(1, 2), sampled=(3,), tags={"task": "t"})
    unit = turn_unit(record, TurnEnd("rec-1", "followed", AT, (user("c"),)))
    assert (unit.tokens, unit.prompt_length, unit.loss_mask) == ((1, 2, 3), 2, (1,))
    assert unit.messages == (user("a"), assistant("b"))
    assert (unit.next_messages, unit.ended) == ((user("c"),), "followed")
    assert (unit.at, unit.recorded_at, unit.tags) == (AT, record.event.at, {"task": "t"})
    assert (unit.record_ids, unit.session_id, unit.score) == (("rec-1",), "ses-1", None)
    assert unit == turn_unit(record, TurnEnd("rec-1", "followed", AT, (user("c"),)))


def test_the_id_of_a_turn_is_that_of_its_exchange():
    record = recorded(1)
    ends = [TurnEnd("rec-1", "followed", AT, (user("c"),)), TurnEnd("rec-1", "idle", T0)]
    assert len({turn_unit(record, end).event_id for end in ends}) == 1
    assert turn_unit(recorded(2), ends[0]).event_id != turn_unit(record, ends[0]).event_id


def test_an_untrainable_turn_says_why_and_has_no_tokens():
    aborted = turn_unit(recorded(1, outcome="aborted"), TurnEnd("rec-1", "idle", AT))
    assert (aborted.untrainable, aborted.tokens, aborted.loss_mask) == ("aborted", (), ())
    assert aborted.messages[0] == user("hello")
    bare = turn_unit(recorded(1, completions=()), TurnEnd("rec-1", "idle", AT))
    assert bare.untrainable == "no_tokens"


def test_a_session_is_its_merged_trajectory():
    one = recorded(1, (user("a"),), "b", prompt=(1, 2), sampled=(3,))
    said = (user("a"), assistant("b"), user("c"))
    two = recorded(2, said, "d", prompt=(1, 2, 3, 4), sampled=(5,))
    (unit,) = session_units([two, one], ending(one, two))
    assert (unit.record_ids, unit.part, unit.parts) == (("rec-1", "rec-2"), 0, 1)
    assert (unit.tokens, unit.loss_mask) == ((1, 2, 3, 4, 5), (1, 0, 1))
    assert (unit.ended, unit.at) == ("closed", AT)
    assert [message["content"] for message in unit.messages] == ["a", "b", "c", "d"]


def test_a_session_that_does_not_merge_has_parts_that_share_no_exchange():
    records = [
        recorded(1, (user("a"),), "b", prompt=(1, 2), sampled=(3,)),
        recorded(2, (user("x"),), "y", prompt=(7,), sampled=(8,)),
        recorded(3, (user("z"),), outcome="failed"),
    ]
    units = session_units(records, ending(*records))
    assert [unit.record_ids for unit in units] == [("rec-1",), ("rec-2",), ("rec-3",)]
    assert [(unit.part, unit.parts) for unit in units] == [(0, 3), (1, 3), (2, 3)]
    assert [unit.untrainable for unit in units] == [None, None, "failed"]
    assert len({unit.event_id for unit in units}) == 3


def test_a_failure_that_was_repeated_with_success_is_no_part():
    failed, done = recorded(1, outcome="failed"), recorded(2, retry_of="rec-1")
    (unit,) = session_units([failed, done], ending(failed, done))
    assert (unit.record_ids, unit.untrainable) == (("rec-2",), None)


def test_a_side_call_is_told_by_its_tag():
    assert is_side_call({"turn-type": "side"})
    assert is_side_call({"turn-type": " Side"})
    assert not is_side_call({"turn-type": "main"})
    assert not is_side_call({"type": "side"})
