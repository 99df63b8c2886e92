"""Identities: order, shape, and that the same inputs always give the same id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reefcommon import ids


def test_receipts_sort_by_time_and_end_in_their_shard():
    early = ids.time_ordered_hex(1_000, b"\xff" * 10)
    late = ids.time_ordered_hex(1_001, b"\x00" * 10)
    assert early < late
    assert early[12] == "7", "version nibble of UUIDv7"
    assert early[16] in "89ab", "variant bits"
    receipt = ids.new_record_id("beef")
    assert ids.is_receipt(receipt)
    assert ids.shard_in(receipt) == "beef"
    assert ids.shard_in(ids.new_report_id("0001")) == "0001"


def test_a_client_chosen_receipt_has_no_shard():
    assert ids.shard_in("my-own-id") is None
    assert ids.is_receipt("my-own-id")


@pytest.mark.parametrize("receipt", ["my-own-id\n", "rec-" + "0" * 32 + "-abcd\n"])
def test_a_receipt_ends_before_a_line_break(receipt):
    assert not ids.is_receipt(receipt)
    assert ids.shard_in(receipt) is None


@given(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(alphabet=" \n/\x00é", min_size=1),
        st.just(""),
        st.just("x" * 129),
    )
)
def test_what_is_no_receipt(value):
    assert not ids.is_receipt(value)


@given(st.text(), st.lists(st.text(), min_size=1, max_size=3))
def test_shard_is_four_hex_digits_and_stable(scenario, identity):
    shard = ids.shard_of(scenario, *identity)
    assert shard == ids.shard_of(scenario, *identity)
    assert len(shard) == 4
    int(shard, 16)


def test_shard_keeps_its_parts_apart():
    assert ids.shard_of("a", "bc") != ids.shard_of("ab", "c")


def test_job_id_ignores_the_order_of_samples_and_nothing_else():
    job = ids.job_id("sao", "r1", ("a", "b"))
    assert job == ids.job_id("sao", "r1", ("b", "a"))
    assert (
        len(
            {
                job,
                ids.job_id("sao", "r2", ("a", "b")),
                ids.job_id("sao", "r1", ("a",)),
                ids.job_id("grpo", "r1", ("a", "b")),
            }
        )
        == 4
    )


def test_lag_is_defined_within_one_incarnation():
    old, new, other = ids.LoadId("x", 3), ids.LoadId("x", 5), ids.LoadId("y", 9)
    assert old.lag_behind(new) == 2
    assert new.lag_behind(old) == -2
    assert other.lag_behind(new) is None
    assert ids.LoadId.parse(str(old)) == old


@given(st.text(alphabet="ab:1"))
def test_a_load_id_is_read_back_or_refused(text):
    try:
        parsed = ids.LoadId.parse(text)
    except ValueError:
        return
    assert str(parsed) == f"{parsed.incarnation}:{parsed.sequence}"
