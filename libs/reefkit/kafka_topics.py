"""Creation of missing topics, and the lag of this process."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from reefcommon import topics
from reefcommon.errors import Unavailable
from reefcommon.topics import Topic


async def ensure_topics(
    bootstrap: str, wanted: tuple[Topic, ...] = topics.ALL, *, replication_factor: int = 1
) -> list[str]:
    """Create missing topics of the registry with dead-letter topics; return their names.

    Raises:
        Unavailable: the broker does not answer, or refuses a topic.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        existing = set(await admin.list_topics())
        new = [
            NewTopic(
                name, partitions, replication_factor, topic_configs={"retention.ms": str(retention)}
            )
            for topic in wanted
            for name, partitions, retention in (
                (topic.name, topic.partitions, topic.retention_ms),
                (topic.dead, 1, -1),
            )
            if name not in existing
        ]
        response = await admin.create_topics(new) if new else None
    except KafkaError as error:
        raise Unavailable(f"cannot create topics on {bootstrap}: {error!r}") from error
    finally:
        await admin.close()
    # The client does not raise the broker's error of a single topic: it is in the answer.
    codes = {name: code for name, code, *_ in response.topic_errors} if response is not None else {}
    fine = (0, TopicAlreadyExistsError.errno)
    refused = [f"{n}: {for_code(code).__name__}" for n, code in codes.items() if code not in fine]
    if refused:
        raise Unavailable(f"{bootstrap} refuses to create topics: {', '.join(refused)}")
    return [name for name, code in codes.items() if code == 0]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    topic: str
    partition: int
    position: int
    end: int

    @property
    def lag(self) -> int:
        return max(self.end - self.position, 0)


@dataclass(slots=True)
class LagProbe:
    """Asks the group's coordinator for committed offsets.

    A question goes on for `give_up_s` seconds, also if its caller has left: so a slow answer is
    told from a missing answer.
    """

    give_up_s: float
    _committed: dict[Any, int] = field(default_factory=dict)
    _rows: list[PartitionLag] = field(default_factory=list)
    _answered_at: float = float("-inf")
    _failure: str = ""
    _question: asyncio.Task[None] | None = None

    async def rows(
        self, consumers: Iterable[Any], *, wait_s: float, max_age_s: float
    ) -> list[PartitionLag]:
        """Return an answer within `wait_s`, else the latest of the last `max_age_s`.

        Raises:
            Unavailable: there is neither.
        """
        asked_at = time.monotonic()
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask(list(consumers)), name="lags")
        await asyncio.wait({self._question}, timeout=wait_s)
        if self._answered_at >= asked_at - max_age_s:
            return self._rows
        why = self._failure if self._question.done() else f"no answer within {wait_s:g} s"
        raise Unavailable(f"the broker does not say what this consumer group has committed: {why}")

    async def _ask(self, consumers: list[Any]) -> None:
        rows = []
        try:
            # During a rebalance the client would wait without end.
            async with asyncio.timeout(self.give_up_s):
                for consumer in consumers:
                    seen = {tp: consumer.highwater(tp) for tp in consumer.assignment()}
                    ends = {tp: end for tp, end in seen.items() if end is not None}
                    # A question is a request for each partition. Without lag there is none until
                    # the end moves; one is asked all the same, for a sign of life.
                    lagging = [tp for tp, end in ends.items() if self._committed.get(tp) != end]
                    asked = lagging or list(ends)[:1]
                    offsets = await asyncio.gather(*map(consumer.committed, asked))
                    self._committed |= {
                        tp: offset or 0 for tp, offset in zip(asked, offsets, strict=True)
                    }
                    rows += [
                        PartitionLag(tp.topic, tp.partition, self._committed[tp], end)
                        for tp, end in ends.items()
                    ]
        except (TimeoutError, KafkaError) as error:
            self._failure = repr(error)
            return
        self._rows, self._answered_at = rows, time.monotonic()
