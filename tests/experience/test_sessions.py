"""Which session a record belongs to, whatever the order and however often."""

import random
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.experience.domain.conversation import fingerprint
from services.experience.domain.sessions import (
    MAX_NODES,
    Assignment,
    Entry,
    Session,
    SessionBook,
)
from tests.experience.factory import T0, assistant, user


def entry(
    record_id: str,
    messages: list[dict[str, object]],
    answer: str = "ok",
    *,
    at: float = 0.0,
    tag: str | None = None,
    scenario: str = "s",
) -> Entry:
    print_ = fingerprint(
        {"messages": messages}, {"choices": [{"message": assistant(answer)}]}, "chat.completions"
    )
    return Entry(record_id, scenario, T0 + timedelta(seconds=at), tag, print_)


def book(max_open: int = 1000, ttl_s: float = 900.0) -> SessionBook:
    return SessionBook(max_open=max_open, ttl_s=ttl_s)


def _messages(name: str, turn: int) -> list[dict[str, object]]:
    """What is said before a turn of a conversation, its request included."""
    said = [{"role": "system", "content": "be kind"}, user(f"{name} begins")]
    for number in range(turn):
        said += [assistant(f"{name} answer {number}"), user(f"{name} goes on {number}")]
    return said


def turns(name: str, length: int, *, start: float = 0.0, tag: str | None = None) -> list[Entry]:
    """A conversation: each request holds all that was said before."""
    return [
        entry(
            f"{name}-{number}",
            _messages(name, number),
            f"{name} answer {number}",
            at=start + number,
            tag=tag,
        )
        for number in range(length)
    ]


def take(sessions: SessionBook, *entries: Entry) -> list[Assignment]:
    made = []
    for one in entries:
        made.append(sessions.assign(one))
        sessions.settle([one.record_id], newest=one.at)
    return made


def test_turns_go_on_and_a_tag_wins() -> None:
    places = take(book(), *turns("a", 3))
    assert [(place.turn, place.sequence) for place in places] == [(0, 1), (1, 2), (2, 3)]
    assert len({place.session_id for place in places}) == 1
    tagged = take(
        book(), entry("r1", [user("x")], tag="t"), entry("r2", [user("unrelated")], tag="t")
    )
    assert [(place.session_id, place.turn) for place in tagged] == [("t", 0), ("t", 1)]


def test_an_equal_request_is_a_retry_and_either_answer_may_be_gone_on_from() -> None:
    sessions = book()
    first, again = entry("r1", [user("x")], "one"), entry("r2", [user("x")], "two", at=1)
    following = entry("r3", [user("x"), assistant("two"), user("y")], at=2)
    one, two, three = take(sessions, first, again, following)
    assert two == Assignment(one.session_id, 0, 2, "r1")
    assert three == Assignment(one.session_id, 1, 3)


def test_branches_of_a_session_go_on_side_by_side() -> None:
    """Rollouts that begin alike, and a turn that was edited after others had followed it."""
    rollouts = [
        [
            entry(f"{n}-0", [user("x")], f"a{n}"),
            entry(f"{n}-1", [user("x"), assistant(f"a{n}"), user("y")], f"b{n}"),
            entry(
                f"{n}-2", [user("x"), assistant(f"a{n}"), user("y"), assistant(f"b{n}"), user("z")]
            ),
        ]
        for n in range(4)
    ]
    edited = entry("e", [user("x"), assistant("a1"), user("y, but shorter")])
    places = take(book(), *(rollout[turn] for turn in range(3) for rollout in rollouts), edited)
    assert len({place.session_id for place in places}) == 1
    assert [place.turn for place in places] == [0] * 4 + [1] * 4 + [2] * 4 + [1]
    assert [place.retry_of for place in places[:5]] == [None, "0-0", "0-0", "0-0", None]


def test_a_record_of_long_ago_is_let_go_and_the_newer_are_kept() -> None:
    said = turns("a", MAX_NODES + 1)
    places = {}
    for length in (MAX_NODES, MAX_NODES + 1):
        sessions = book()
        first, *_ = take(sessions, *said[:length])
        for number in (0, 1):
            messages = [*_messages("a", number + 1)[:-1], user("another way")]
            branch = entry(f"branch-{number}", messages, at=MAX_NODES + 2.0)
            (place,) = take(sessions, branch)
            places[length, number] = place.session_id == first.session_id
    assert places == {
        (MAX_NODES, 0): True,
        (MAX_NODES, 1): True,
        (MAX_NODES + 1, 0): False,
        (MAX_NODES + 1, 1): True,
    }


def test_an_edited_history_another_scenario_and_a_long_pause_split() -> None:
    first = entry("r1", [user("x")], "<think>hm</think>one")
    others = [
        entry("r2", [user("x"), assistant("one"), user("y")], at=1),
        entry(
            "r3", [user("x"), assistant("<think>hm</think>one"), user("y")], at=1, scenario="other"
        ),
        entry("r4", [user("x"), assistant("<think>hm</think>one"), user("y")], at=901),
        entry("r5", [user("x")], at=902),
    ]
    for other in others:
        one, two = take(book(), first, other)
        assert one.session_id != two.session_id
        assert two.turn == 0


def test_memory_is_bounded_and_evictions_are_counted() -> None:
    """E7."""
    sessions = book(max_open=5)
    take(sessions, *(entry(f"r{n}", [user(f"q{n}")]) for n in range(100)))
    assert (len(sessions), sessions.evicted) == (5, 95)
    assert (len(sessions._by_request), len(sessions._by_tail), len(sessions._unsettled)) == (
        5,
        5,
        0,
    )
    take(sessions, entry("late", [user("late")], at=10_000))
    assert len(sessions) == 1, "closed sessions are let go without being counted as evicted"
    assert sessions.evicted == 95


def test_nothing_is_evicted_before_its_row_is_durable() -> None:
    sessions = book(max_open=1)
    entries = [entry(f"r{n}", [user(f"q{n}")]) for n in range(3)]
    places = [sessions.assign(one) for one in entries]
    assert all(sessions.get(("s", place.session_id)) for place in places)


CONVERSATIONS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(lengths=CONVERSATIONS, seed=st.integers(0, 2**32), tagged=st.booleans())
def test_conversations_are_merged_whatever_their_interleaving(
    lengths: list[int], seed: int, tagged: bool
) -> None:
    chooser = random.Random(seed)
    waiting = [
        turns(f"c{n}", length, tag=f"t{n}" if tagged else None) for n, length in enumerate(lengths)
    ]
    sessions, places = book(), {}
    while any(waiting):
        queue = chooser.choice([queue for queue in waiting if queue])
        one = queue.pop(0)
        places[one.record_id] = take(sessions, one)[0]
    for n, length in enumerate(lengths):
        mine = [places[f"c{n}-{turn}"] for turn in range(length)]
        assert [place.turn for place in mine] == list(range(length))
        assert len({place.session_id for place in mine}) == 1
    assert len({place.session_id for place in places.values()}) == len(lengths)


@settings(max_examples=60, deadline=None)
@given(lengths=CONVERSATIONS, seed=st.integers(0, 2**32))
def test_redelivery_and_restart_change_nothing(lengths: list[int], seed: int) -> None:
    """Each record may come again later, in this process or in one that has read its sessions from the rows."""
    chooser = random.Random(seed)
    waiting = [turns(f"c{n}", length) for n, length in enumerate(lengths)]
    sessions, places, rows = book(), {}, {}
    seen: list[Entry] = []

    def keep(one: Entry, place: Assignment) -> None:
        session = sessions.get((one.scenario, place.session_id))
        assert session is not None
        rows[session.key] = max(session, rows.get(session.key, session), key=lambda s: s.sequence)

    while any(waiting):
        queue = chooser.choice([queue for queue in waiting if queue])
        one = queue.pop(0)
        places[one.record_id] = take(sessions, one)[0]
        keep(one, places[one.record_id])
        seen.append(one)
        again = chooser.choice(seen)
        sessions.replay(again, places[again.record_id])
        keep(again, places[again.record_id])
        if chooser.random() < 0.3:
            sessions = book()
            sessions.restore(sorted(rows.values(), key=lambda session: session.last_at))
    straight = book()
    for n, length in enumerate(lengths):
        expected = take(straight, *turns(f"c{n}", length))
        assert [places[f"c{n}-{turn}"] for turn in range(length)] == expected
        assert rows["s", expected[0].session_id] == straight.get(("s", expected[0].session_id))


def test_only_what_the_store_may_know_is_asked_for() -> None:
    sessions = book()
    assert sessions.missing(turns("a", 3)) == (set(), set(), set()), (
        "a first turn, and turns that go on from one in the same batch"
    )
    stranger = turns("b", 2)[1]
    tagged = entry("r", [user("x")], tag="t")
    assert sessions.missing([stranger, tagged]) == (
        set(tagged.tag_keys),
        {("s", stranger.fingerprint.prefixes[0])},
        set(),
    )
    take(sessions, turns("b", 1)[0], tagged)
    assert sessions.missing([stranger, tagged]) == (set(), set(), set())


def test_what_was_forgotten_is_asked_for_while_it_may_be_open() -> None:
    """A retry of a session that was put out of memory is no new session, whatever the limit on memory was."""
    small = book(max_open=1)
    take(small, *turns("a", 1), *turns("b", 1))
    retry, late = entry("r", [user("a")], at=10), entry("l", [user("a")], at=2000)
    assert small.missing([retry])[2] == {("s", retry.fingerprint.request)}
    assert small.missing([late]) == (set(), set(), set())


class Shelf:
    """The store of sessions, as the book sees it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Session] = {}

    def find(self, keys: set[Any], tails: set[Any], requests: set[Any]) -> list[Session]:
        found = [
            row
            for row in self.rows.values()
            if row.key in keys
            or (
                not row.tagged
                and (
                    any(("s", sent) in requests for sent in row.request_hashes)
                    or any(("s", tail) in tails for tail in row.tail_hashes)
                )
            )
        ]
        return sorted(found, key=lambda row: row.last_at)


def places_of(entries: list[Entry], max_open: int, cuts: list[int]) -> list[Assignment]:
    """The places of these entries, taken in batches that end at `cuts`, with a restart after every other one."""
    shelf, sessions, places = Shelf(), book(max_open=max_open), []
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(entries)], strict=True)):
        batch = entries[begin:end]
        if not batch:
            continue
        sessions.restore(shelf.find(*sessions.missing(batch)))
        places += [sessions.assign(one) for one in batch]
        for row in list(sessions._sessions.values()):
            known = shelf.rows.get(row.key)
            if known is None or known.sequence <= row.sequence:
                shelf.rows[row.key] = row
        sessions.settle([one.record_id for one in batch], newest=max(one.at for one in batch))
        if number % 2:
            sessions = book(max_open=max_open)
            sessions.note_missing(max(one.at for one in entries[:end]))
    return places


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.lists(st.sampled_from("xy"), min_size=1, max_size=4),
            st.integers(0, 1500),
        ),
        max_size=24,
    ),
    st.integers(1, 5),
    st.lists(st.integers(0, 24), max_size=5),
)
def test_sessions_do_not_depend_on_memory_on_batches_or_on_restarts(
    traffic: list[tuple[str, list[str], int]], max_open: int, cuts: list[int]
) -> None:
    """What makes the log readable a second time: one pass with all in memory gives the same as any other."""
    entries, clock = [], 0
    for number, (answer, texts, pause) in enumerate(traffic):
        clock += pause if pause > 600 else 1
        messages = [assistant(text) if turn % 2 else user(text) for turn, text in enumerate(texts)]
        entries.append(entry(f"r{number}", messages, answer, at=clock))
    inside = sorted({min(cut, len(entries)) for cut in cuts})
    assert places_of(entries, max_open, inside) == places_of(entries, 1000, [])


def test_a_batch_that_is_tried_again_gets_the_same_places() -> None:
    sessions = book()
    entries = turns("a", 3)
    first = [sessions.assign(one) for one in entries]
    assert [sessions.assign(one) for one in entries] == first


def test_a_session_that_was_lost_between_two_rows_is_mended_by_the_redelivery() -> None:
    """The record's row was written, the session's was not, and the process was killed."""
    one, two = turns("a", 2)
    lost = book()
    places = take(lost, one, two)
    after = book()
    after.replay(one, places[0])
    after.replay(two, places[1])
    assert after.get(("s", places[0].session_id)) == lost.get(("s", places[0].session_id))
    after.replay(one, places[0])
    session: Session | None = after.get(("s", places[0].session_id))
    assert session is not None
    assert session.sequence == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(st.sampled_from("xyz"), min_size=1, max_size=4),
            st.none() | st.sampled_from("tu"),
        ),
        max_size=30,
    )
)
def test_any_traffic_keeps_the_book_in_order(
    traffic: list[tuple[str, list[str], str | None]],
) -> None:
    sessions = book(max_open=4)
    for number, (answer, texts, tag) in enumerate(traffic):
        messages = [assistant(text) if turn % 2 else user(text) for turn, text in enumerate(texts)]
        take(sessions, entry(f"r{number}", messages, answer, at=number, tag=tag))
        open_keys = set(sessions._sessions)
        assert len(open_keys) <= 4
        assert set(sessions._by_request.values()) <= open_keys
        assert set(sessions._by_tail.values()) <= open_keys
