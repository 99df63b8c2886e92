"""Dead letters as they lie in their topics: which there are, which have been dealt with, and how they are dealt with.

What was done is a fact in the same topic (`event.dead.settled.v1`), so that it holds wherever one looks from, and for ever.
"""

import asyncio
import base64
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from pydantic import Field, TypeAdapter, ValidationError

from reefcli.errors import CommandFailed
from reefcli.replay.log import open_log
from reefcommon import topics
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import DeadLettered, DeadLetterSettled, utc_now
from reefcommon.ids import digest
from reefkit.bodies import BodyMissing, FilesystemBodies, claim_check, whole_value

_EVENTS: TypeAdapter[DeadLettered | DeadLetterSettled] = TypeAdapter(
    Annotated[DeadLettered | DeadLetterSettled, Field(discriminator="type")]
)
Action = Literal["retried", "dropped"]


@dataclass(slots=True)
class Letter:
    """One event that could not be handled by one consumer group. `count`: how often it was given up; `settled`: what was done about it."""

    first: DeadLettered
    last: DeadLettered
    count: int = 1
    settled: DeadLetterSettled | None = None

    @property
    def id(self) -> str:
        """The letter's id: the same for the same event and group."""
        return self.first.event_id

    @property
    def body(self) -> bytes:
        """The event's bytes as they were."""
        return base64.b64decode(self.first.value)

    @property
    def key(self) -> bytes | None:
        """The key that the event had."""
        if self.last.key_base64 is not None:
            return base64.b64decode(self.last.key_base64)
        return self.last.key.encode() if self.last.key is not None else None

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers that the event had."""
        return [(name, base64.b64decode(value)) for name, value in self.last.headers or ()]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters are meant; a part that is None means all."""

    topic: str | None = None
    group: str | None = None
    reason: str | None = None
    scenario: str | None = None
    handled: bool = False

    def meets(self, letter: Letter) -> bool:
        """Whether this one is meant."""
        one = letter.last
        return (
            (self.handled or letter.settled is None)
            and (self.topic is None or self.topic in {one.topic, f"{one.topic}.dead"})
            and self.group in {None, one.group}
            and self.scenario in {None, one.scenario}
            and (self.reason is None or self.reason.lower() in one.reason.lower())
        )


@dataclass(slots=True)
class Letters:
    """All letters, by id, in the order in which they came."""

    found: dict[str, Letter] = field(default_factory=dict)
    _settled: dict[str, DeadLetterSettled] = field(default_factory=dict)

    def take(self, value: bytes | None) -> None:
        """Fold in one message of a dead-letter topic."""
        try:
            event = _EVENTS.validate_json(value or b"")
        except ValidationError:
            return
        if isinstance(event, DeadLetterSettled):
            self._settled.setdefault(event.dead_id, event)
        elif (known := self.found.get(event.event_id)) is not None:
            known.count += 1
            known.last = event
        else:
            self.found[event.event_id] = Letter(event, event)
        of = event.dead_id if isinstance(event, DeadLetterSettled) else event.event_id
        if of in self.found:
            self.found[of].settled = self._settled.get(of)

    def named(self, ids: Sequence[str]) -> list[Letter]:
        """The letters with these ids, or whose ids alone begin so.

        Raises:
            CommandFailed: there is none, or more than one.
        """
        letters = []
        for wanted in ids:
            fitting = [
                letter
                for name, letter in self.found.items()
                if name.startswith((wanted, f"dead-{wanted}"))
            ]
            if not fitting:
                raise CommandFailed(
                    f"no dead letter {wanted}; `reef dlq list --handled` shows all there are"
                )
            if len(fitting) > 1 and wanted not in self.found:
                raise CommandFailed(
                    f"{wanted} may be any of {', '.join(letter.id for letter in fitting[:5])}: give more of the id"
                )
            letters.append(self.found[wanted] if wanted in self.found else fitting[0])
        return letters


async def read(bootstrap: str, bodies: FilesystemBodies) -> Letters:
    """Everything that lies in the dead-letter topics. A letter without its body is left out.

    Raises:
        CommandFailed: the broker does not answer.
    """
    letters = Letters()
    async with open_log(bootstrap, [topic.dead for topic in topics.ALL]) as log:
        async for batch in log.batches(1000):
            for record in batch:
                with contextlib.suppress(BodyMissing, Poison):
                    letters.take(await whole_value(record.value, record.headers, bodies))
    return letters


async def settle(
    bootstrap: str, bodies: FilesystemBodies, letters: Iterable[Letter], action: Action
) -> list[Letter]:
    """Deal with letters; returns those that had not been dealt with before.

    A retried event goes to its topic again, to its partition, with its key and headers, before that is noted: killed in between, it is
    there twice, and consumers tell repeats by their ids.

    Raises:
        CommandFailed: the broker does not acknowledge; what is not noted can be dealt with again.
    """
    open_letters = [letter for letter in letters if letter.settled is None]
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        client_id="reef-dlq",
        acks="all",
        enable_idempotence=False,
    )
    try:
        async with asyncio.timeout(30):
            await producer.start()
        for letter in open_letters:
            one = letter.last
            if action == "retried":
                value, claim = await claim_check(letter.body, bodies)
                headers = [
                    *letter.headers,
                    *((name, text.encode()) for name, text in claim.items()),
                ]
                place = {"partition": one.partition, "key": letter.key, "headers": headers}
                await producer.send_and_wait(one.topic, value, **place)
            fact = _fact(letter, action, utc_now())
            await producer.send_and_wait(
                f"{one.topic}.dead", fact.model_dump_json().encode(), key=letter.id.encode()
            )
            letter.settled = fact
    except (KafkaError, TimeoutError, OSError, Unavailable) as error:
        raise CommandFailed(
            f"the broker at {bootstrap} did not acknowledge: {error!r}; do the same again, repeats are harmless"
        ) from None
    finally:
        await producer.stop()
    return open_letters


def _fact(letter: Letter, action: Action, at: datetime) -> DeadLetterSettled:
    return DeadLetterSettled(
        event_id="set-" + digest("settled", letter.id),
        at=at,
        scenario=letter.first.scenario,
        dead_id=letter.id,
        action=action,
    )
