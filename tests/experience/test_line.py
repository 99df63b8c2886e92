"""Which answer was followed by which request, and when a session ended."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from services.experience.domain import line as lines
from services.experience.domain.conversation import fingerprint
from services.experience.domain.line import Changes, Incoming, Line, Mark, RunEnd, said_after
from tests.experience.factory import T0, assistant, user

IDLE = timedelta(seconds=100)
Said = list[dict[str, Any]]
A, AB = [user("a")], [user("a"), assistant("b"), user("c")]


class Talk:
    """A session's exchanges, taken one after the other; `ends` are those of the turns."""

    def __init__(self, *, tagged: bool = False) -> None:
        self.line, self.changes, self.tagged, self.count = Line(), Changes(), tagged, 0
        self.stored: dict[str, Mark] = {}

    def take(
        self,
        name: str,
        messages: Sequence[dict[str, Any]],
        answer: str | None = "b",
        *,
        at: float | None = None,
        took: float = 0.1,
        **more: Any,
    ) -> None:
        self.count += 1
        at = float(self.count) if at is None else at
        response = None if answer is None else {"choices": [{"message": assistant(answer)}]}
        prints = fingerprint({"messages": list(messages)}, response, "chat.completions")
        time = T0 + timedelta(seconds=at)
        incoming = Incoming(
            name,
            more.pop("sequence", self.count),
            prints,
            tuple(messages),
            time - timedelta(seconds=took),
            time,
            tagged=self.tagged,
            **more,
        )
        # Whatever is asked of a line, one that was read from the store gives the same.
        again, twin = Line(self.stored.values()), Changes()
        again.take(incoming, IDLE, twin)
        own = Changes()
        self.line.take(incoming, IDLE, own)
        assert own == twin
        self.stored |= own.marks
        for found, new in ((self.changes.turns, own.turns), (self.changes.runs, own.runs)):
            found.extend(new)
        self.changes.marks |= own.marks

    def expire(self, at: float) -> None:
        own = Changes()
        self.line.expire(T0 + timedelta(seconds=at), IDLE, own)
        self.stored |= own.marks
        self.changes.marks |= own.marks
        self.changes.turns += own.turns
        self.changes.runs += own.runs

    @property
    def ends(self) -> list[tuple[str, str, list[str]]]:
        return [
            (end.record_id, end.ended, [m["content"] for m in end.next_messages])
            for end in self.changes.turns
        ]

    @property
    def runs(self) -> list[tuple[tuple[str, ...], str]]:
        return [(end.record_ids, end.ended) for end in self.changes.runs]


def test_the_next_request_follows_the_answer_that_it_goes_on_from():
    talk = Talk()
    talk.take("one", A)
    assert talk.ends == []
    talk.take("two", AB, "d")
    assert talk.ends == [("one", "followed", ["c"])]
    talk.take("three", [*AB, assistant("d"), user("e")], last=True)
    assert talk.ends[1:] == [("two", "followed", ["e"]), ("three", "closed", [])]
    assert talk.runs == [(("one", "two", "three"), "closed")]
    assert [end.at for end in talk.changes.turns] == [T0 + timedelta(seconds=n) for n in (2, 3, 3)]


def test_tool_results_are_what_follows_up_to_the_next_answer():
    talk = Talk()
    talk.take("one", A)
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    reminder = {"role": "system", "content": "be kind"}
    late = [assistant("made elsewhere"), user("later")]
    talk.take("two", [user("a"), assistant("b"), *results, reminder, *late])
    assert talk.ends == [("one", "followed", ["1", "2"])]


def test_a_request_that_only_begins_the_next_answer_follows_nothing():
    talk = Talk()
    talk.take("one", A)
    talk.take("two", [user("a"), assistant("b"), assistant("and so")])
    assert talk.ends == []


def test_a_retry_is_no_next_turn_and_the_abandoned_answer_is_no_unit():
    talk = Talk(tagged=True)
    talk.take("one", A, "x")
    talk.take("again", A, "b")
    assert talk.ends == []
    talk.take("two", AB, last=True)
    assert talk.ends == [("again", "followed", ["c"]), ("two", "closed", [])]
    assert talk.runs == [(("again", "two"), "closed")]
    assert talk.stored["one"].state == "abandoned"


def test_an_abandoned_answer_that_is_taken_up_after_all_was_followed():
    talk = Talk()
    talk.take("one", A, "x")
    talk.take("again", A, "b")
    talk.take("two", AB, "d")
    talk.take("back", [user("a"), assistant("x"), user("y")])
    assert talk.ends == [("again", "followed", ["c"]), ("one", "followed", ["y"])]


def test_equal_answers_to_equal_requests_are_each_followed_once():
    talk = Talk()
    for name in ("one", "twin"):
        talk.take(name, A)
    talk.take("two", AB, "d")
    talk.take("three", [user("a"), assistant("b"), user("other")])
    talk.take("four", [user("a"), assistant("b"), user("third")])
    assert talk.ends == [("twin", "followed", ["c"]), ("one", "followed", ["other"])]


def test_rollouts_that_no_request_goes_on_from_all_end_with_the_session():
    talk = Talk()
    for number in range(3):
        talk.take(f"r{number}", A, str(number))
    talk.expire(200)
    assert talk.ends == [(f"r{number}", "idle", []) for number in range(3)]


def test_a_tag_binds_turns_in_time_if_the_history_was_rewritten():
    talk = Talk(tagged=True)
    talk.take("one", A, "b")
    talk.take("two", [{"role": "system", "content": "summary"}, user("c")], "d")
    talk.take("three", [user("x"), assistant("shortened"), user("e")])
    assert talk.ends == [("one", "followed", ["c"]), ("two", "followed", ["e"])]
    plain = Talk()
    plain.take("one", A, "b")
    plain.take("two", [user("c")], "d")
    assert plain.ends == []


def test_requests_at_the_same_time_do_not_follow_each_other():
    talk = Talk(tagged=True)
    talk.take("one", [user("a")], at=5, took=4)
    talk.take("two", [user("b")], at=6, took=5)
    talk.take("three", [user("c")], at=9, took=1)
    assert talk.ends == [("two", "followed", ["c"])]


def test_after_a_gap_only_the_content_tells_what_follows():
    talk = Talk(tagged=True)
    talk.take("one", A, sequence=1)
    talk.take("two", [user("new")], "d", sequence=3)
    talk.take("three", [user("new"), assistant("d"), user("e")], sequence=6)
    assert talk.ends == [("two", "followed", ["e"])]


def test_a_side_call_is_neither_a_unit_nor_a_next_request():
    talk = Talk(tagged=True)
    talk.take("one", A)
    talk.take("title", [user("a"), assistant("b"), user("name this")], side=True)
    talk.take("other", [user("unrelated")], side=True)
    talk.take("two", AB, "d")
    assert talk.ends == [("one", "followed", ["c"])]
    talk.take("bye", [user("rate this")], side=True, last=True)
    assert talk.ends[1:] == [("two", "closed", [])]
    assert talk.runs == [(("one", "two"), "closed")]


def test_a_side_call_neither_keeps_a_session_open_nor_ends_it_anew():
    talk = Talk()
    talk.take("one", A, at=0)
    talk.take("title", [user("a"), assistant("b"), user("name this")], side=True, at=90)
    talk.take("bye", [user("rate this")], side=True, last=True, at=101)
    assert talk.runs == [(("one",), "idle")]


@pytest.mark.parametrize(("later", "followed"), [(100, True), (100.001, False)])
def test_a_request_after_the_idle_time_does_not_follow(later: float, followed: bool):
    talk = Talk()
    talk.take("one", A, at=0)
    talk.take("two", AB, "d", at=later)
    if followed:
        assert talk.ends == [("one", "followed", ["c"])]
        return
    assert talk.ends == [("one", "idle", [])]
    assert talk.changes.runs == [RunEnd(("one",), "idle", T0 + IDLE)]
    talk.take("three", [*AB, assistant("d"), user("e")], at=later + 1)
    assert talk.ends[1:] == [("two", "followed", ["e"])]


def test_a_sweep_ends_a_session_as_a_late_request_does():
    swept, read = Talk(), Talk()
    for talk in (swept, read):
        talk.take("one", A, at=0)
        talk.take("two", AB, "d", at=3)
    swept.expire(102)
    assert swept.ends == [("one", "followed", ["c"])]
    swept.expire(104)
    for talk in (swept, read):
        talk.take("three", [*AB, assistant("d"), user("e")], at=500)
    assert swept.changes == read.changes
    assert swept.ends[1:] == [("two", "idle", [])]


def test_a_session_goes_on_after_its_end_as_another_run():
    talk = Talk(tagged=True)
    talk.take("one", A, last=True)
    talk.take("two", AB, "d")
    talk.take("three", [*AB, assistant("d"), user("e")], last=True)
    assert talk.runs == [(("one",), "closed"), (("two", "three"), "closed")]
    assert talk.stored["three"].run == talk.stored["two"].run == 2


def test_an_exchange_that_comes_again_changes_nothing():
    talk = Talk(tagged=True)
    talk.take("one", A, sequence=1)
    talk.take("two", AB, "d", sequence=2)
    before = dict(talk.stored)
    talk.take("one", A, sequence=1)
    talk.take("two", AB, "d", sequence=2, last=True)
    assert talk.stored == before
    assert len(talk.ends) == 1


def test_an_answer_that_never_came_is_followed_too():
    talk = Talk(tagged=True)
    talk.take("one", A, None)
    talk.take("two", [user("a"), user("are you there?")])
    assert talk.ends == [("one", "followed", ["a", "are you there?"])]


def test_a_run_has_an_end_however_long_the_session(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MAX_RUN", 3)
    talk = Talk()
    said: Said = [user("a")]
    for number in range(7):
        talk.take(f"t{number}", said, str(number))
        said = [*said, assistant(str(number)), user("on")]
    assert [name for name, ended, _ in talk.ends if ended == "followed"] == [
        f"t{n}" for n in range(6)
    ]
    assert talk.runs == [(("t0", "t1", "t2"), "idle"), (("t3", "t4", "t5"), "idle")]


def test_depth_counts_answers_from_the_end():
    messages = (user("a"), assistant("b"), user("c"), assistant("d"), user("e"))
    assert said_after(messages) == (user("e"),)
    assert said_after(messages, 1) == (user("c"),)
    assert said_after((user("a"), user("b"))) == (user("a"), user("b"))
