"""The pure parts: frames, assembly, shards, balance, routing."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reefcommon.errors import Unavailable
from services.gateway.domain.answer import take
from services.gateway.domain.assembly import Assembly
from services.gateway.domain.balance import FAILURES_TO_OPEN, OPEN_S, Node, choose
from services.gateway.domain.exchange import Asked, asked_of, shard_for
from services.gateway.domain.heads import HeadTable
from services.gateway.domain.keys import KeyEntry
from services.gateway.domain.recent import Recent
from services.gateway.domain.sse import Frames, data_of
from services.gateway.upstream.rotation import RotationFollower

from .fakes import release

NOTHING = Asked(model="m", logprobs=False, token_ids=False, usage=False)


@given(
    st.lists(
        st.sampled_from(["data: a", ": note", 'data: {"x": 1}', "event: e\ndata: b"]), max_size=8
    ),
    st.data(),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_frames_are_the_same_however_the_bytes_are_cut(
    frames: list[str], data: st.DataObject, newline: str
) -> None:
    """Any cutting of the byte stream gives the same frames, with any of the three line ends."""
    text = "".join(frame.replace("\n", newline) + newline * 2 for frame in frames).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    reader = Frames()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += reader.feed(text[start:end])
    found += reader.feed(b"\n\n\n")
    assert found == [frame.encode() for frame in frames]


def test_data_of_a_frame() -> None:
    """One line, several lines, comments, other fields."""
    assert data_of(b"data: {}") == b"{}"
    assert data_of(b"event: x\ndata: a\ndata: b") == b"a\nb"
    assert data_of(b": comment") == b""


@given(
    st.lists(st.tuples(st.integers(0, 2), st.text(max_size=4)), max_size=12),
    st.booleans(),
)
def test_an_assembled_stream_has_every_choices_text(
    deltas: list[tuple[int, str]], usage: bool
) -> None:
    """Choices that come in any order are put together by index."""
    asked = Asked(model="m", logprobs=False, token_ids=False, usage=usage)
    whole = Assembly("chat.completions", asked)
    for index, text in deltas:
        whole.take(
            {
                "id": "1",
                "model": "x",
                "choices": [{"index": index, "delta": {"content": text}, "token_ids": [1]}],
            }
        )
    answer = whole.answer()
    if not deltas:
        assert answer is None
        return
    assert answer is not None
    expected = {
        i: "".join(t for index, t in deltas if index == i)
        for i in sorted({index for index, _ in deltas})
    }
    assert {c["index"]: c["message"]["content"] for c in answer["choices"]} == expected
    assert {c["index"]: len(c["token_ids"]) for c in whole.captured().completions} == {
        i: sum(index == i for index, _ in deltas) for i in expected
    }


def test_a_usage_chunk_goes_only_to_those_who_asked() -> None:
    """Reef asks for usage always; the client sees it where it asked too."""
    chunk: dict[str, Any] = {
        "id": "1",
        "model": "x",
        "choices": [],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    assert not Assembly("chat.completions", NOTHING).take(dict(chunk))
    wanting = Asked(model="m", logprobs=False, token_ids=False, usage=True)
    assert Assembly("chat.completions", wanting).take(dict(chunk))


def test_odd_upstream_fields_never_make_an_unreadable_event() -> None:
    """Ids that are no integers, log-probabilities that are null, usage without counts: left out, not passed on."""
    answer = {
        "prompt_token_ids": ["a"],
        "usage": {"prompt_tokens": None},
        "choices": [
            {
                "index": "0",
                "finish_reason": 3,
                "token_ids": [1, True],
                "logprobs": {"content": [{"logprob": None}]},
                "weight_versions": [1],
            },
            "odd",
        ],
    }
    captured = take(answer, NOTHING)
    assert (captured.prompt_token_ids, captured.usage) == ([], None)
    assert captured.completions == [
        {"index": 0, "finish_reason": None, "token_ids": [], "logprobs": [], "weight_versions": []}
    ]


def test_several_prompts_in_one_request_have_no_prompt_ids() -> None:
    """One list of prompt ids would be wrong for all but one completion."""
    answer = {
        "choices": [
            {"index": i, "text": "", "prompt_token_ids": [i], "token_ids": [5]} for i in range(2)
        ]
    }
    assert take(answer, NOTHING).prompt_token_ids == []


def test_all_turns_of_a_conversation_share_a_shard() -> None:
    """The first user message and the system prompt decide; a session tag decides alone."""
    first = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]}
    later = {
        "messages": [
            *first["messages"],
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
    }
    other = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "z"}]}
    shard = shard_for("chat.completions", "x", None, first)
    assert shard == shard_for("chat.completions", "x", None, later)
    assert shard != shard_for("chat.completions", "x", None, other)
    assert shard != shard_for("chat.completions", "y", None, first)
    assert shard_for("chat.completions", "x", "tag", first) == shard_for(
        "chat.completions", "x", "tag", other
    )


def test_what_was_asked() -> None:
    """Chat's `logprobs` is a flag, the older endpoint's a number whose zero still asks."""
    assert not asked_of("chat.completions", {"logprobs": False}).logprobs
    assert asked_of("completions", {"logprobs": 0}).logprobs
    assert asked_of("chat.completions", {"stream_options": {"include_usage": True}}).usage


def test_balance() -> None:
    """The least busy node, the conversation's own where it is not much busier, none whose circuit is open; then one try again."""
    a, b = Node("http://a"), Node("http://b")
    own = choose([a, b], "m", "s", now=0)
    assert own is not None
    other = b if own is a else a
    own.in_flight = 4
    assert choose([a, b], "m", "s", now=0) is own
    own.in_flight = 5
    assert choose([a, b], "m", "s", now=0) is other
    other.listed(["another"])
    own.listed(["m"])
    assert choose([a, b], "m", "s", now=0) is own
    for _ in range(FAILURES_TO_OPEN):
        own.failed(0)
    assert choose([a, b], "m", "s", now=1) is other
    assert choose([own], "m", "s", now=1) is None
    assert choose([own], "m", "s", now=OPEN_S + 1) is own


def test_routing_never_goes_back() -> None:
    """News that come late or twice change nothing; recent releases stay reachable for a pin."""
    table = HeadTable()
    assert table.publish(release("s", 1, "a"))
    assert table.publish(release("s", 2, "b"))
    assert not table.publish(release("s", 1, "a"))
    head = table.head("s")
    assert head is not None
    assert head.sequence == 2
    assert table.release("s", "rel-s-1") is not None
    assert table.release("t", "rel-s-1") is None


def test_a_release_of_another_chain_is_no_head() -> None:
    """As a forged event says it, or another installation on the same broker."""
    table = HeadTable()
    own = [
        release("s", n, "a").model_copy(update={"parent_id": f"rel-s-{n - 1}"}) for n in range(4)
    ]
    table.settle(own[1::-1])
    assert not table.publish(own[3].model_copy(update={"parent_id": "rel-t-2"}))
    assert table.release("s", "rel-s-3") is None
    forged = own[2].model_copy(update={"release_id": "forged"})
    assert table.publish(forged), "it says that it is the next"
    table.settle(own[2::-1])
    assert table.head("s") == own[2]
    assert table.publish(own[3])


def test_recent_is_bounded() -> None:
    """The latest half of the limit is always there, more than the limit never."""
    recent = Recent(10)
    for n in range(100):
        recent.add(str(n), "s", "inference")
    assert all(recent.get(str(n)) for n in range(95, 100))
    assert sum(recent.get(str(n)) is not None for n in range(100)) <= 10


@given(st.binary(), st.booleans())
def test_key_entries_come_back(answer: bytes, kept: bool) -> None:
    """Any answer survives the store."""
    entry = KeyEntry(
        "d", "inference", "s", "abcd", "done", 200, ((b"a", b"\xff"),), answer if kept else None
    )
    assert KeyEntry.decode(entry.encode()) == entry


def test_a_node_that_is_set_apart_comes_last() -> None:
    """It gets nothing while another node can take it, and everything where none can: a poor node is better than none."""
    good, poor = Node("http://a"), Node("http://b", apart=True)
    assert all(choose([good, poor], "m", str(n), now=0.0) is good for n in range(20))
    good.apart = True
    assert {id(choose([good, poor], "m", str(n), now=0.0)) for n in range(40)} == {
        id(good),
        id(poor),
    }
    assert choose([poor], "m", "x", now=0.0) is poor


async def test_the_publishers_rotation_is_followed() -> None:
    """Under the names of the settings; what was read last holds while it cannot be read."""

    class Source:
        def __init__(self) -> None:
            self.rows: dict[str, str] | None = {"http://user:pw@b": "it did not load rel-1"}

        async def apart(self) -> dict[str, str]:
            if self.rows is None:
                raise Unavailable("away, as asked")
            return self.rows

    source, nodes = Source(), [Node("http://a"), Node("http://b")]
    follower = RotationFollower(source.apart, ["http://a", "http://user:pw@b"], nodes)
    await follower.poll()
    assert [node.apart for node in nodes] == [False, True]
    source.rows = None
    await follower.poll()
    assert [node.apart for node in nodes] == [False, True]
    source.rows = {}
    await follower.poll()
    assert [node.apart for node in nodes] == [False, False]
