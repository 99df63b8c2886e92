"""Every version of every event that was ever written is decoded for ever: one golden example of each lies in tests/golden."""

import json
from pathlib import Path
from typing import get_args

import pytest

from reefcommon import events, topics

GOLDEN = Path(__file__).parents[1] / "golden"


def type_of(event: type[events.Event]) -> str:
    return event.model_fields["type"].default


@pytest.mark.parametrize("event", events.ALL, ids=type_of)
def test_golden_example_decodes_and_loses_nothing(event):
    text = (GOLDEN / f"{type_of(event)}.json").read_text()
    decoded = event.model_validate_json(text)
    assert json.loads(decoded.model_dump_json(exclude_unset=True)) == json.loads(text)


@pytest.mark.parametrize("event", events.ALL, ids=type_of)
def test_unknown_fields_are_ignored_so_that_fields_can_be_added(event):
    body = json.loads((GOLDEN / f"{type_of(event)}.json").read_text())
    assert event.model_validate({**body, "added_later": 1}) == event.model_validate(body)


def test_every_golden_file_has_an_event():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {type_of(event) for event in events.ALL}


def test_every_event_but_the_dead_letter_lies_in_exactly_one_topic():
    placed = [event for topic in topics.ALL for event in topic.events]
    assert len(placed) == len(set(placed))
    assert set(events.ALL) - set(placed) == {events.DeadLettered, events.DeadLetterSettled}


def test_events_are_frozen():
    event = events.ScenarioCreateRequested(event_id="c", at=events.utc_now(), scenario="s")
    with pytest.raises(ValueError, match="frozen"):
        event.scenario = "other"


def test_a_score_that_is_not_finite_is_no_score():
    body = json.loads((GOLDEN / "feedback.reported.v1.json").read_text())
    with pytest.raises(ValueError, match="finite"):
        events.FeedbackReported.model_validate({**body, "score": float("nan")})


def test_what_may_be_absent_can_be_left_out():
    """Events are written without their nulls, so a field that may be null must have a default: else its own event cannot be read back."""
    values = [
        cls
        for cls in vars(events).values()
        if isinstance(cls, type) and issubclass(cls, events.Value)
    ]
    required = [f"{cls.__name__}.{name}" for cls in values for name, field in cls.model_fields.items()
                if field.is_required() and type(None) in get_args(field.annotation)]  # fmt: skip
    assert required == []
