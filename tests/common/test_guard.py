"""The guard without a broker: what it does when dead letters are not acknowledged, and with batches."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
from aiokafka import ConsumerRecord
from aiokafka.errors import KafkaConnectionError

from reefcommon.errors import Conflict, Poison, Transient, Unavailable
from reefcommon.events import DeadLettered
from reefkit import guard as guards
from reefkit.bodies import CLAIM_HEADER, FilesystemBodies
from reefkit.dead_letter_limit import DeadLetterLimit, TooManyDead
from reefkit.guard import Guard
from reefkit.retry import RetryPolicy


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No delays, and no tracebacks on the screen: they take longer than all else."""
    monkeypatch.setattr(guards, "RETRY", RetryPolicy(0.0))
    with structlog.testing.capture_logs():
        yield


@dataclass(eq=False)
class Broker:
    """Takes dead letters; it does not acknowledge the first `failures` of them, although it keeps them."""

    failures: int = 0
    letters: list[DeadLettered] = field(default_factory=list)

    async def publish(
        self, message: bytes, *, topic: str, key: bytes | None, headers: dict[str, str]
    ) -> None:
        self.letters.append(DeadLettered.model_validate_json(message))
        assert (topic, key) == ("t.dead", b"k")
        if self.failures:
            self.failures -= 1
            raise KafkaConnectionError("no acknowledgement, as asked")


def record(offset: int) -> ConsumerRecord:
    value = json.dumps({"scenario": "default", "n": offset}).encode()
    return ConsumerRecord("t", 0, offset, 0, 0, b"k", value, None, 1, len(value), ())


def guard(broker: Broker, limit: int = 100, service: str = "test") -> Guard:
    allowed = DeadLetterLimit("test-guard", limit, 0.5, 300.0)
    return Guard(service, FilesystemBodies(Path("/nowhere")), allowed, broker)


async def handle(one: Guard, *errors: BaseException | None, batch: int = 0) -> tuple[Any, int]:
    """What comes of one message, or of a batch, whose handler ends like this, one call after another; and how often it was called."""
    left = list(errors)

    async def handler(_message: Any) -> str:
        if (error := left.pop(0)) is not None:
            raise error
        return "done"

    raw = tuple(record(n) for n in range(batch)) if batch else record(0)
    message = SimpleNamespace(raw_message=raw)
    result = await one(None, context=None).consume_scope(handler, message)  # type: ignore[arg-type]
    return result, len(errors) - len(left)


async def test_an_event_is_let_go_only_when_its_letter_is_acknowledged():
    """The handler is asked again meanwhile; it may have been mended."""
    broker = Broker(failures=2)
    assert await handle(guard(broker), *[Poison("never")] * 5) == (None, 3)
    assert len({letter.event_id for letter in broker.letters}) == 1
    broker = Broker(failures=1)
    assert await handle(guard(broker), Poison("not yet"), None) == ("done", 2)


async def test_a_broker_that_is_away_for_a_while_is_no_topic_full_of_poison():
    """However often the letters of one batch are written again, they count as often as they are."""
    broker = Broker(failures=50)
    one = guard(broker, limit=3)
    assert await handle(one, *[Poison("never")] * 60, batch=3) == (None, 51)
    assert len({letter.event_id for letter in broker.letters}) == 3
    with pytest.raises(TooManyDead):
        await one.bury(record(9), "one more", 1)
    await one.bury(record(10), "does not count", 1, counts=False)


async def test_a_batch_that_can_never_be_handled_is_dead_whole_and_apart():
    broker = Broker()
    assert await handle(guard(broker), Poison("never"), batch=3) == (None, 1)
    assert [letter.offset for letter in broker.letters] == [0, 1, 2]


@pytest.mark.parametrize(
    "error", [Transient("later"), ValueError("a bug")], ids=["transient", "mistake"]
)
async def test_what_fails_too_often_is_dead_at_that_attempt(error):
    broker = Broker()
    assert await handle(guard(broker), *[error] * 99) == (None, guards.MAX_ATTEMPTS)
    (letter,) = broker.letters
    assert letter.attempts == guards.MAX_ATTEMPTS
    assert await handle(guard(broker), *[error] * (guards.MAX_ATTEMPTS - 1), None) == (
        "done",
        guards.MAX_ATTEMPTS,
    )
    assert len(broker.letters) == 1


async def test_an_outside_system_is_waited_for_and_a_lost_race_is_over():
    broker = Broker()
    assert await handle(guard(broker), *[Unavailable("away")] * 50, None) == ("done", 51)
    assert await handle(guard(broker), Conflict("lost"), None) == (None, 1)
    assert broker.letters == []


async def test_a_letter_of_a_batch_is_written_once_while_the_others_wait():
    broker, seen, waits = Broker(), [], [Unavailable("away")] * 20
    broken = replace(record(1), headers=((CLAIM_HEADER, b"{"),))

    async def handler(message: Any) -> None:
        seen.append([json.loads(value)["n"] for value in message.body])
        if waits:
            raise waits.pop()

    message = SimpleNamespace(
        raw_message=(record(0), broken, record(2)), clear_cache=lambda: None, body=None
    )
    await guard(broker)(None, context=None).consume_scope(handler, message)  # type: ignore[arg-type]
    assert seen == [[0, 2]] * 21
    assert len(broker.letters) == 1


async def test_what_was_handled_makes_room_for_what_was_not():
    """Half of what comes may be dead, as it was set here."""
    broker = Broker()
    one = guard(broker, limit=1)
    await handle(one, None, batch=3)
    for offset in range(3):
        await one.bury(record(offset), "never", 1)
    with pytest.raises(TooManyDead):
        await one.bury(record(3), "never", 1)


async def test_the_letters_of_two_services_are_two():
    broker = Broker()
    for name in ("g", "h"):
        await guard(broker, service=name).bury(record(0), "never", 1)
    assert len({letter.event_id for letter in broker.letters}) == 2
