"""Which samples come of a report and its records, and which cannot be trained on."""

import pytest

from reefcommon.events import Completion, FeedbackReported, InferenceRecorded, SampleReady, Sampling
from services.experience.domain.samples import Record, make_samples
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


def only(said: FeedbackReported, *records: Record) -> SampleReady:
    """The one sample that comes of them."""
    (sample,) = make_samples(said, records)
    return sample


ONE = Completion(index=0, token_ids=(1,), logprobs=(-0.1,))
CUT = Completion(index=0, token_ids=(1,), logprobs=(-0.1,), finish_reason="abort")


def shown(*parts: object) -> InferenceRecorded:
    """An exchange whose user says these parts."""
    said = {"role": "user", "content": ["hello", *parts]}
    return inference(request={"messages": [user("hello"), said]})


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
        (inference(completions=(CUT,)), "aborted"),
        (shown({"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}), None),
        (shown({"type": "thinking", "thinking": "hm"}), None),
        (shown({"type": "image_url", "image_url": {"url": "data:"}}), "not_text"),
        (shown({"image_url": "http://picture"}), "not_text"),
        (shown({"type": "input_audio", "input_audio": {"data": ""}}), "not_text"),
        (inference(request={"messages": [user("hello")], "prompt_embeds": "x"}), "not_text"),
    ],
)
def test_one_record(event: InferenceRecorded, reason: str | None) -> None:
    sample = only(report(event.event_id), record(event))
    assert sample.untrainable == reason
    assert bool(sample.tokens) == (reason is None)
    assert (
        len(sample.loss_mask) == len(sample.logprobs) == (len(sample.tokens) - sample.prompt_length)
    )
    assert sample.messages[0] == user("hello")


def test_a_sample_without_a_score_keeps_its_tokens() -> None:
    event = inference()
    sample = only(report(event.event_id, score=None, feedback="good"), record(event))
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
    sample = only(
        report("rec-1", "rec-2", metadata={"k": 1}), record(one), record(two, turn=1, sequence=2)
    )
    assert (sample.load_id, sample.release_id) == ("inc:9", "rel-0")
    assert sample.metadata == {"k": 1, "reef_load_ids": ["inc:10", "inc:9"]}
    assert sample.tokens == (1, 2, 3, 4)


def test_the_options_of_the_chat_template_are_kept_for_a_teachers_prompt() -> None:
    request = {"messages": [user("a")], "chat_template_kwargs": {"enable_thinking": False}}
    event = inference((user("a"),), request=request)
    sample = only(report(event.event_id), record(event))
    assert sample.metadata == {"reef_template_options": {"enable_thinking": False}}
    odd = inference((user("a"),), request={**request, "chat_template_kwargs": "none"})
    assert only(report(odd.event_id), record(odd)).metadata == {}


def test_a_turn_that_names_no_load_makes_its_sample_one_of_no_known_age() -> None:
    """Else the staleness of the turn beside it would count for both."""
    one, two = two_turns(load_id=None)
    sample = only(report("rec-1", "rec-2"), record(one), record(two, turn=1, sequence=2))
    assert (sample.load_id, sample.untrainable) == (None, None)


def test_the_tokens_join_what_labels_keep_apart() -> None:
    """Two sessions, because a label was wrong or a client edited what it sent: one trajectory."""
    one, two = two_turns()
    sample = only(report("rec-1", "rec-2"), record(one), record(two, session="t"))
    assert (sample.tokens, sample.loss_mask) == ((1, 2, 3, 4), (1, 0, 1))
    assert (sample.untrainable, sample.session_id) == (None, None)


def test_records_that_the_tokens_do_not_join_are_samples_of_their_own() -> None:
    one, _ = two_turns()
    said = report("rec-1", "rec-2")
    others = (
        two_turns(prompt=(9, 2, 3))[1],
        two_turns(temperature=0.5)[1],
        two_turns(caller="someone else")[1],
    )
    for other in others:
        made = make_samples(said, [record(one), record(other, turn=1, sequence=2)])
        assert [sample.record_ids for sample in made] == [("rec-1",), ("rec-2",)]
        assert [sum(sample.loss_mask) for sample in made] == [1, 1]
        assert [sample.score for sample in made] == [1.0, 1.0]
        assert len({sample.event_id for sample in made}) == 2


def test_rollouts_that_begin_alike_are_each_trainable() -> None:
    """By a report on each, and by one on all of them."""
    rollouts = []
    for n in range(3):
        first = inference((user("a"),), f"b{n}", prompt=(1,), sampled=(10 + n,), record_id=f"f{n}")
        said = (user("a"), assistant(f"b{n}"), user("c"))
        prompt = (1, 10 + n, 3)
        second = inference(said, "d", prompt=prompt, sampled=(20 + n,), record_id=f"s{n}")
        rollouts.append((
            record(first, sequence=n + 1, retry_of=None if n == 0 else "f0"),
            record(second, turn=1, sequence=n + 4),
        ))  # fmt: skip
    for n, rollout in enumerate(rollouts):
        sample = only(report(f"f{n}", f"s{n}"), *rollout)
        assert (sample.tokens, sample.loss_mask) == ((1, 10 + n, 3, 20 + n), (1, 0, 1))
    every = [one for rollout in rollouts for one in rollout]
    made = make_samples(report(*(one.event.event_id for one in every)), every)
    assert [sample.record_ids for sample in made] == [(f"f{n}", f"s{n}") for n in range(3)]


def test_one_failed_turn_makes_its_report_untrainable_unless_it_was_repeated() -> None:
    one, failed = two_turns(outcome="aborted")
    said = report("rec-1", "rec-2", "rec-3")
    again = failed.model_copy(update={"event_id": "rec-3", "outcome": "ok"})
    repeated = record(again, turn=1, sequence=3, retry_of="rec-2")
    assert only(said, record(one), record(failed, turn=1, sequence=2)).untrainable == "aborted"
    sample = only(said, record(one), record(failed, turn=1, sequence=2), repeated)
    assert (sample.untrainable, sample.record_ids) == (None, ("rec-1", "rec-3"))


def test_of_a_repeated_turn_the_answer_that_was_continued_is_kept() -> None:
    one, two = two_turns()
    retry = inference((user("a"),), "B", at=0.5, prompt=(1,), sampled=(7,), record_id="rec-r")
    went_on = two.model_copy(update={"prompt_token_ids": (1, 7, 3)})
    records = [
        record(one),
        record(retry, sequence=2, retry_of="rec-1"),
        record(went_on, turn=1, sequence=3),
    ]
    assert only(report("rec-1", "rec-r", "rec-2"), *records).tokens == (1, 7, 3, 4)
    both = make_samples(report("rec-1", "rec-r"), records[:2])
    assert [sample.tokens for sample in both] == [(1, 2), (1, 7)]


def test_a_clock_that_steps_back_between_turns_changes_nothing() -> None:
    """The order is that of the log. Seen with a step of 5 s; here the second turn is an hour early."""
    one, two = two_turns(at=-3600)
    sample = only(report("rec-1", "rec-2"), record(two, turn=1, sequence=2), record(one))
    assert sample.record_ids == ("rec-1", "rec-2")
    assert sample.tokens == (1, 2, 3, 4)
    assert sample.messages[-1] == assistant("d")
    untrainable = [
        record(event.model_copy(update={"completions": ()}), turn=n, sequence=n + 1)
        for n, event in enumerate((one, two))
    ]
    assert only(report("rec-1", "rec-2"), *untrainable[::-1]).record_ids == ("rec-1", "rec-2")


def test_a_sample_has_the_sampling_and_the_loads_of_its_turns() -> None:
    stated = Sampling(temperature=1.0, top_p=0.9, seed=7, stated_by="engine")
    one, two = two_turns(sampling=stated, loads={"weights": "inc:9", "harness": "inc:4"})
    sample = only(report("rec-1", "rec-2"), record(one), record(two, turn=1, sequence=2))
    assert sample.sampling == (Sampling(temperature=1.0), stated)
    assert sample.loads == {"weights": "inc:9", "harness": "inc:4"}


def test_the_same_inputs_in_any_order_make_the_same_sample() -> None:
    one, two = two_turns()
    records = [record(one), record(two, turn=1, sequence=2)]
    said = report("rec-1", "rec-2", report_id="rep-1")
    assert make_samples(said, records) == make_samples(said, records[::-1])
