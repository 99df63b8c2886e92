"""Dead letters as they lie in their topics.

A retry or drop is a fact in the same topic (`event.dead.settled.v1`), for every reader of the log.
"""

import asyncio
import base64
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
    """An event that a service gave up, `count` times. `settled`: how it was dealt with."""

    first: DeadLettered
    last: DeadLettered
    count: int = 0
    settled: DeadLetterSettled | None = None

    @property
    def id(self) -> str:
        return self.first.event_id

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.first.value)

    @property
    def key(self) -> bytes | None:
        if self.last.key_base64 is not None:
            return base64.b64decode(self.last.key_base64)
        return self.last.key.encode() if self.last.key is not None else None

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        return [(name, base64.b64decode(value)) for name, value in self.last.headers or ()]


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Selects letters; a part that is None selects all."""

    topic: str | None = None
    group: str | None = None
    reason: str | None = None
    scenario: str | None = None
    handled: bool = False

    def meets(self, letter: Letter) -> bool:
        event = letter.last
        return (
            (self.handled or letter.settled is None)
            and self.topic in {None, event.topic, f"{event.topic}.dead"}
            and self.group in {None, event.group}
            and self.scenario in {None, event.scenario}
            and (self.reason or "").lower() in event.reason.lower()
        )


@dataclass(slots=True)
class Letters:
    """All letters, in the order in which they came."""

    by_id: dict[str, Letter] = field(default_factory=dict)
    _settled: dict[str, DeadLetterSettled] = field(default_factory=dict)

    def take(self, value: bytes | None) -> None:
        try:
            event = _EVENTS.validate_json(value or b"")
        except ValidationError:
            return
        # The note may come before the letter: topics are read in the order of time, not of cause.
        if isinstance(event, DeadLetterSettled):
            note = self._settled.setdefault(event.dead_id, event)
            if event.dead_id in self.by_id:
                self.by_id[event.dead_id].settled = note
        else:
            letter = self.by_id.setdefault(event.event_id, Letter(event, event))
            letter.last, letter.count = event, letter.count + 1
            letter.settled = self._settled.get(event.event_id)

    def meeting(self, wanted: LetterFilter) -> list[Letter]:
        return [letter for letter in self.by_id.values() if wanted.meets(letter)]

    def named(self, ids: Sequence[str]) -> list[Letter]:
        """Return the letters with these ids or unambiguous beginnings.

        Raises:
            CommandFailed: an id fits no letter, or several.
        """
        letters = []
        for wanted in ids:
            # The prefix may be left out.
            begin = (wanted, f"dead-{wanted}")
            fitting = [x for name, x in self.by_id.items() if name.startswith(begin)]
            if not fitting:
                there = "`reef dlq list --handled` shows all there are"
                raise CommandFailed(f"no dead letter {wanted}; {there}")
            if len(fitting) > 1 and wanted not in self.by_id:
                some = ", ".join(letter.id for letter in fitting[:5])
                raise CommandFailed(f"{wanted} may be any of {some}: give more of the id")
            letters.append(self.by_id.get(wanted, fitting[0]))
        return letters


@dataclass(frozen=True, slots=True)
class DeadLetterLog:
    """A broker's dead-letter topics, and the store of large bodies."""

    bootstrap: str
    bodies: FilesystemBodies

    async def read(self) -> Letters:
        """Read all letters. Raises CommandFailed if the broker does not answer."""
        letters = Letters()
        log = await open_log(self.bootstrap, [topic.dead for topic in topics.ALL])
        async for batch in log.batches(1000):
            for record in batch:
                # A letter without its body cannot be told; the others can.
                with contextlib.suppress(BodyMissing, Poison):
                    letters.take(await whole_value(record.value, record.headers, self.bodies))
        return letters

    async def settle(self, letters: Iterable[Letter], action: Action) -> list[Letter]:
        """Retry or drop letters; returns those that were open. May be repeated.

        Raises:
            CommandFailed: the broker does not acknowledge; an unacknowledged letter stays open.
        """
        waiting = [letter for letter in letters if letter.settled is None]
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            client_id="reef-dlq",
            acks="all",
            # The embedded broker has no idempotent producer; a repeat is told by its id.
            enable_idempotence=False,
        )
        try:
            async with asyncio.timeout(30):
                await producer.start()
            for letter in waiting:
                # The event first, then the note: a crash in between repeats the event, with its id.
                if action == "retried":
                    await self._send_again(producer, letter)
                fact = DeadLetterSettled(
                    event_id="set-" + digest("settled", letter.id),
                    at=utc_now(),
                    scenario=letter.first.scenario,
                    dead_id=letter.id,
                    action=action,
                )
                value, topic = fact.model_dump_json().encode(), f"{letter.last.topic}.dead"
                await producer.send_and_wait(topic, value, key=letter.id.encode())
                letter.settled = fact
        except (KafkaError, TimeoutError, OSError, Unavailable) as error:
            fault = f"the broker at {self.bootstrap} did not acknowledge: {error!r}"
            raise CommandFailed(f"{fault}; do the same again, repeats are harmless") from None
        finally:
            await producer.stop()
        return waiting

    async def _send_again(self, producer: AIOKafkaProducer, letter: Letter) -> None:
        value, claim = await claim_check(letter.body, self.bodies)
        headers = [*letter.headers, *((name, text.encode()) for name, text in claim.items())]
        place = {"partition": letter.last.partition, "key": letter.key, "headers": headers}
        await producer.send_and_wait(letter.last.topic, value, **place)
