"""Pauses between the fetches of a consumer of the embedded broker, at rest.

Kafka answers a fetch with the first event. The embedded broker looks at every partition again and
again while a fetch waits, each time after half of the time that is left: eight looks in 500 ms. A
fetch that waits `LOOK_MS` is one look: it says how far the partitions go, and has no time to read.
"""

#     fetch that waits --quiet for a minute--> pause --> look --nothing new--> pause --> look ...
#        ^                                                |new events
#        '------------------------------------------------'

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

log = structlog.get_logger()

LOOK_MS = 1
QUIET_AFTER_S = 60.0


def pause_s(fetch_wait_ms: int) -> float:
    """Return the pause: 0.5 s, or 0.25 s longer than an event waits at most without pauses."""
    return max(fetch_wait_ms / 2000 + 0.25, 0.5)


def pace(consumer: AIOKafkaConsumer) -> Callable[[], None]:
    """Let a started consumer pause after a minute without events.

    A caller that expects an event begins the minute anew by the function that is returned. aiokafka
    has no interface for pauses: if its fetcher has changed, the consumer fetches as before.
    """
    try:
        fetcher: Any = consumer._fetcher  # noqa: SLF001
        fetch, wait_ms = fetcher._proc_fetch_request, fetcher._fetch_max_wait_ms  # noqa: SLF001
    except AttributeError as error:
        log.warning("fetches_not_paced", reason=str(error))
        return lambda: None
    heard = time.monotonic()

    def expect() -> None:
        nonlocal heard
        heard = time.monotonic()

    async def paced(assignment: Any, node: int, request: Any) -> bool:
        found: bool = await fetch(assignment, node, request)
        if found or _is_behind(assignment, request):
            expect()
        rests = time.monotonic() - heard >= QUIET_AFTER_S
        fetcher._fetch_max_wait_ms = LOOK_MS if rests else wait_ms  # noqa: SLF001
        task = asyncio.current_task()
        if rests and not (task and task.cancelling()):  # aiokafka takes it for an empty answer
            with suppress(asyncio.CancelledError):  # the partitions are gone, or the consumer stops
                await asyncio.sleep(pause_s(wait_ms))
        return found

    fetcher._proc_fetch_request = paced  # noqa: SLF001
    return expect


def _is_behind(assignment: Any, request: Any) -> bool:
    states = (
        (assignment.state_value(TopicPartition(topic, partition)), offset)
        for topic, partitions in request.topics
        for partition, offset, _ in partitions
    )
    return any(state is not None and (state.highwater or 0) > offset for state, offset in states)
