"""Release events from the log, and the outcomes of commands."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError
from pydantic import TypeAdapter, ValidationError

from reefcommon import topics
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import CandidateProposed, Event, Learning, Publication, ReleasePublished
from reefkit.bodies import FilesystemBodies, whole_value
from reefkit.bus import AT_ONCE_MS
from reefkit.kafka_pace import pace
from services.gateway.domain.log_event import log_event
from services.gateway.log.kafka import KafkaRecordLog
from services.gateway.ports import Command, News, NotDurable

log = structlog.get_logger()

_FOLLOWED = (topics.RELEASES, topics.TRAINING)
_HEARD: TypeAdapter[Event] = TypeAdapter(Publication | Learning)
Snapshot = Callable[[], Awaitable[None]]
OnEvent = Callable[[Event, bool], None]
"""Gets an event, and whether it is new. The last PAST release events of each partition come as old,
and after an error some events come again."""
PAST = 500
STOP_TIMEOUT_S = 5.0


def _asked_by(event: News) -> str:
    about = event.release if isinstance(event, ReleasePublished) else event
    return event.command_id or getattr(about, "candidate_id", None) or ""


class ReleaseTail:
    """Follows the releases and the recipes' steps, and ends the waits for commands."""

    def __init__(
        self, bootstrap: str, log_: KafkaRecordLog, bodies: FilesystemBodies, *, paced: bool = False
    ) -> None:
        self._bootstrap, self._paced = bootstrap, paced
        self._bodies = bodies
        self._log = log_
        self._waiting: dict[str, asyncio.Future[News]] = {}
        self.listening = asyncio.Event()
        self._expect: Callable[[], None] = lambda: None

    async def submit(self, command: Command, *, timeout_s: float) -> News:
        if self._log.away is not None:
            raise NotDurable(self._log.away)
        future: asyncio.Future[News] = asyncio.get_running_loop().create_future()
        self._waiting[command.event_id] = future
        self._expect()
        try:
            async with asyncio.timeout(timeout_s):
                await self.listening.wait()
                proposes = isinstance(command, CandidateProposed)
                topic = topics.CANDIDATES if proposes else topics.COMMANDS
                await self._log.append(log_event(topic, command, command.scenario))
                return await future
        finally:
            del self._waiting[command.event_id]

    async def run(self, snapshot: Snapshot, on_event: OnEvent, *, every_s: float) -> None:
        """Take a snapshot at the end of the topics, read on; start again after an error.

        every_s: seconds between two snapshots.
        """
        while True:
            try:
                await self._follow(snapshot, on_event, every_s)
            except (KafkaError, OSError) as error:
                self.listening.clear()
                log.warning("release_tail_broken", reason=repr(error)[:300])
                await asyncio.sleep(1)

    async def _follow(self, snapshot: Snapshot, on_event: OnEvent, every_s: float) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,  # every gateway gets all events
            fetch_max_wait_ms=AT_ONCE_MS,
        )
        now = asyncio.get_running_loop().time
        try:
            await consumer.start()
            if self._paced:
                self._expect = pace(consumer)
            await consumer.topics()
            # As the broker has them: an older installation may have more or fewer.
            assigned = [
                TopicPartition(topic.name, n)
                for topic in _FOLLOWED
                for n in consumer.partitions_for_topic(topic.name) or ()
            ]
            missing = {topic.name for topic in _FOLLOWED} - {place.topic for place in assigned}
            if missing:
                raise UnknownTopicOrPartitionError(*missing)
            consumer.assign(assigned)
            await consumer.seek_to_end(*assigned)
            ends = {partition: await consumer.position(partition) for partition in assigned}
            for partition, begin in (await consumer.beginning_offsets(assigned)).items():
                if partition.topic == topics.RELEASES.name:
                    consumer.seek(partition, max(begin, ends[partition] - PAST))
            await snapshot()
            self.listening.set()
            seen = now()
            while True:
                for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                    for record in records:
                        await self._hear(record, on_event, record.offset >= ends[partition])
                if now() - seen > every_s:
                    await snapshot()
                    seen = now()
        finally:
            # its own tasks may go on asking a broker that is gone
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await consumer.stop()

    async def _hear(self, record: ConsumerRecord, on_event: OnEvent, new: bool) -> None:
        try:
            body = await whole_value(record.value, record.headers, self._bodies)
            event = _HEARD.validate_json(body)
        # The next snapshot of the heads has what this event would have said.
        except (Unavailable, Poison) as error:
            log.warning("event_body_missing", reason=str(error))
            return
        except ValidationError as error:
            # The log gets the reason, not the content: an event may hold anything.
            found = error.errors(include_input=False, include_url=False)
            log.warning("event_unreadable", reason=str(found)[:300])
            return
        on_event(event, new)
        if new and isinstance(event, News):
            future = self._waiting.get(_asked_by(event))
            if future is not None and not future.done():
                future.set_result(event)
