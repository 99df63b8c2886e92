"""Receipts: there, once, with their answers, in their order."""

from collections import Counter, defaultdict
from itertools import pairwise

from reefcommon.events import InferenceRecorded
from tests.chaos.facts import Answer, Facts
from tests.chaos.reading import Stated, acknowledged, content_of, of_type


def receipts_in_the_log(facts: Facts) -> Stated:
    """Loss, duplicates with another content, answers that are not those given."""
    copies: dict[str, list[InferenceRecorded]] = defaultdict(list)
    for _, event in of_type(facts, InferenceRecorded):
        copies[event.event_id].append(event)
    held, broken = acknowledged(facts), []
    for receipt, answer in held.items():
        found = copies.get(receipt, [])
        if not found:
            broken.append(
                f"lost: {receipt} ({answer.conversation} turn {answer.turn}) is not in the log"
            )
        elif len({event.model_dump_json() for event in found}) > 1:
            broken.append(f"twice: {receipt} is in the log with {len(found)} different contents")
        elif content_of(found[0]) != answer.content:
            broken.append(
                f"other answer: {receipt} was answered {answer.content!r}, the log says {content_of(found[0])!r}"
            )
    return Stated(
        "receipts in the log",
        "every acknowledged receipt is in the log, once by effect, with its answer",
        len(held),
        tuple(broken),
    )


def receipts_in_the_store(facts: Facts) -> Stated:
    """Every acknowledged receipt is one row, made of the bytes that are in the log; the store
    has nothing that the log has not.
    """
    logged = {event.event_id: place.digest for place, event in of_type(facts, InferenceRecorded)}
    rows = Counter(row.record_id for row in facts.records)
    by_id = {row.record_id: row for row in facts.records}
    held, broken = acknowledged(facts), []
    for receipt, answer in held.items():
        if not rows[receipt]:
            broken.append(f"lost: {receipt} is not in the store")
        elif rows[receipt] > 1:
            broken.append(f"twice: {receipt} is in the store {rows[receipt]} times")
        elif by_id[receipt].content != answer.content:
            broken.append(
                f"other answer: {receipt} was answered {answer.content!r}, the store says {by_id[receipt].content!r}"
            )
    for row in facts.records:
        if row.record_id not in logged:
            broken.append(f"invented: {row.record_id} is in the store and not in the log")
        elif row.digest != logged[row.record_id]:
            broken.append(f"other bytes: {row.record_id} in the store is not what lies in the log")
    broken += [
        f"missing: {receipt} is in the log and not in the store"
        for receipt in logged.keys() - rows.keys() - held.keys()
    ]
    return Stated(
        "receipts in the store",
        "each is one row of the store, as it lies in the log",
        len(held),
        tuple(broken),
    )


def order_kept(facts: Facts) -> Stated:
    """Turns that followed each other at the client follow each other in one partition."""
    first: dict[str, tuple[int, int]] = {}
    for place, event in of_type(facts, InferenceRecorded):
        first.setdefault(event.event_id, (place.partition, place.offset))
    turns: dict[str, list[Answer]] = defaultdict(list)
    for answer in acknowledged(facts).values():
        if answer.receipt in first:
            turns[answer.conversation].append(answer)
    broken = []
    for name, answers in turns.items():
        in_time = sorted(answers, key=lambda answer: answer.turn)
        for before, after in pairwise(in_time):
            (at, offset), (then_at, then_offset) = first[before.receipt], first[after.receipt]
            if at != then_at or offset >= then_offset:
                broken.append(
                    f"reordered: {name}: turn {before.turn} ({before.receipt}) lies at {at}/{offset}, "
                    f"turn {after.turn} ({after.receipt}) at {then_at}/{then_offset}"
                )
    return Stated(
        "order kept",
        "the turns of a conversation are in the log in their order",
        len(turns),
        tuple(broken),
    )


def one_answer_a_key(facts: Facts) -> Stated:
    """Requests that were sent again under one key got one receipt and one answer."""
    given: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for answer in facts.answers:
        if answer.complete and answer.key:
            given[answer.key].add((answer.receipt, answer.content))
    broken = [
        f"key {key} got {len(answers)} different answers"
        for key, answers in given.items()
        if len(answers) > 1
    ]
    broken += [
        f"key {key} got the receipt {r}"
        for key, answers in given.items()
        for r, _ in answers
        if r != key
    ]
    return Stated(
        "one answer a key",
        "a request sent again under its key gets the same answer",
        len(given),
        tuple(broken),
    )
