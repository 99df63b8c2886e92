"""Which samples cannot be trained on, and why."""

import pytest

from reefcommon.events import Completion, InferenceRecorded
from services.experience.domain.samples import Record, make_sample
from services.experience.domain.sessions import Assignment
from tests.experience.factory import assistant, inference, report, user


def record(
    event: InferenceRecorded,
    session: str = "s",
    turn: int = 0,
    sequence: int = 1,
    retry_of: str | None = None,
) -> Record:
    return Record(event, "d", Assignment(session, turn, sequence, retry_of))


ONE = Completion(index=0, token_ids=(1,), logprobs=(-0.1,))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (inference(), None),
        (inference(outcome="aborted"), "aborted"),
        (inference(outcome="failed"), "failed"),
        (inference(outcome="upstream_incomplete"), "upstream_incomplete"),
        (inference(completions=(ONE, ONE.model_copy(update={"index": 1}))), "several_choices"),
        (inference(completions=()), "no_tokens"),
        (inference(sampled=()), "no_tokens"),
        (inference(prompt=()), "no_tokens"),
        (inference(sampled=(1, 2), logprobs=(-0.1,)), "length_mismatch"),
        (inference(sampled=(1,), logprobs=(float("-inf"),)), "not_finite"),
        (inference(sampled=(1, 2), logprobs=(-0.5, float("nan"))), "not_finite"),
        (inference(versions=("v1", "v1")), None),
        (inference(versions=("v1", "v2")), "mixed_versions"),
    ],
)
def test_one_record(event: InferenceRecorded, reason: str | None) -> None:
    sample = make_sample(report(event.event_id), [record(event)], realign_tokens=0)
    assert sample.untrainable == reason
    assert bool(sample.tokens) == (reason is None)
    assert (
        len(sample.loss_mask) == len(sample.logprobs) == (len(sample.tokens) - sample.prompt_length)
    )
    assert sample.messages[0] == user("hello")


def test_a_sample_without_a_score_keeps_its_tokens() -> None:
    event = inference()
    sample = make_sample(
        report(event.event_id, score=None, feedback="good"), [record(event)], realign_tokens=0
    )
    assert (sample.score, sample.feedback, sample.untrainable) == (None, "good", None)
    assert sample.tokens


def two_turns(**second: object) -> list[InferenceRecorded]:
    one = inference(
        (user("a"),), "b", prompt=(1,), sampled=(2,), record_id="rec-1", load_id="inc:10"
    )
    values = {
        "at": 1,
        "prompt": (1, 2, 3),
        "sampled": (4,),
        "record_id": "rec-2",
        "load_id": "inc:9",
        "release_id": "rel-0",
        **second,
    }
    return [one, inference((user("a"), assistant("b"), user("c")), "d", **values)]


def test_turns_of_several_loads_count_as_the_oldest_and_say_so() -> None:
    one, two = two_turns()
    sample = make_sample(
        report("rec-1", "rec-2", metadata={"k": 1}),
        [record(one), record(two, turn=1, sequence=2)],
        realign_tokens=0,
    )
    assert (sample.load_id, sample.release_id) == ("inc:9", "rel-0")
    assert sample.metadata == {"k": 1, "reef_load_ids": ["inc:10", "inc:9"]}
    assert sample.tokens == (1, 2, 3, 4)


def test_a_turn_that_names_no_load_makes_its_sample_one_of_no_known_age() -> None:
    """Else the staleness of the turn beside it would count for both."""
    one, two = two_turns(load_id=None)
    sample = make_sample(
        report("rec-1", "rec-2"), [record(one), record(two, turn=1, sequence=2)], realign_tokens=0
    )
    assert (sample.load_id, sample.untrainable) == (None, None)


def test_records_of_several_sessions_forks_and_temperatures_are_named() -> None:
    one, two = two_turns()
    said = report("rec-1", "rec-2")
    assert (
        make_sample(said, [record(one), record(two, session="t")], realign_tokens=0).untrainable
        == "several_sessions"
    )
    forked = two_turns(prompt=(9, 2, 3))[1]
    assert (
        make_sample(said, [record(one), record(forked, turn=1)], realign_tokens=9).untrainable
        == "forked"
    )
    hot = two_turns(temperature=0.5)[1]
    assert (
        make_sample(said, [record(one), record(hot, turn=1)], realign_tokens=9).untrainable
        == "mixed_temperatures"
    )
    failed = two_turns(outcome="aborted")[1]
    assert (
        make_sample(said, [record(one), record(failed, turn=1)], realign_tokens=9).untrainable
        == "aborted"
    )


def test_of_a_retried_turn_the_one_that_the_client_went_on_from_is_kept_else_the_first() -> None:
    one, two = two_turns()
    retry = inference((user("a"),), "B", at=0.5, prompt=(1,), sampled=(7,), record_id="rec-r")
    said = report("rec-1", "rec-r", "rec-2")
    went_on = two.model_copy(update={"prompt_token_ids": (1, 7, 3)})
    records = [
        record(one),
        record(retry, sequence=2, retry_of="rec-1"),
        record(went_on, turn=1, sequence=3),
    ]
    assert make_sample(said, records, realign_tokens=0).tokens == (1, 7, 3, 4)
    assert make_sample(report("rec-1", "rec-r"), records[:2], realign_tokens=0).tokens == (1, 2)


def test_the_same_inputs_in_any_order_make_the_same_sample() -> None:
    one, two = two_turns()
    records = [record(one), record(two, turn=1, sequence=2)]
    said = report("rec-1", "rec-2", report_id="rep-1")
    assert make_sample(said, records, realign_tokens=0) == make_sample(
        said, records[::-1], realign_tokens=0
    )
