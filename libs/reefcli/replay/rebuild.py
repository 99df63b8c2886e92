"""The experience service's own handlers on a new store; their events are only counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import orjson
from aiokafka import ConsumerRecord, TopicPartition

from reefcli.errors import CommandFailed
from reefcommon.errors import Poison
from reefcommon.events import Event, SampleReady, utc_now
from reefcommon.topics import Topic
from reefkit.bodies import BodyMissing, FilesystemBodies, whole_value
from reefkit.retry import RetryPolicy, retried
from reefstack.state import write_private
from services.experience.clickhouse import ClickHouseAudit, ClickHouseStore, Database
from services.experience.handlers import Handlers
from services.experience.kafka import arrival
from services.experience.ports import Arrival
from services.experience.settings import Settings
from services.experience.units import Horizon
from services.experience.wants import Periods, Wants

# With doubled delays about a minute: a store that restarts is back by then.
RETRIES = RetryPolicy(max_delay_s=32.0, max_attempts=8)


@dataclass(slots=True)
class Nowhere:
    """EventPublisher and DeadLetters of a replay: counts, and sends no event."""

    samples: int = 0
    units: int = 0
    dead: Counter[str] = field(default_factory=Counter)

    async def publish(self, event: Event, _topic: Topic, *, shard: str | None = None) -> None:
        del shard
        report = isinstance(event, SampleReady)
        self.samples += report
        self.units += not report

    async def bury(self, arrival: Arrival, reason: str, *, waited: bool = False) -> None:
        del waited
        self.dead[f"{arrival.topic}: {reason.partition(':')[0]}"] += 1


@dataclass(slots=True)
class LogClock:
    """The log's time, so that rows say when their events came; `live`: the present."""

    at: datetime = field(default_factory=lambda: datetime.fromtimestamp(0, UTC))
    live: bool = False

    def __call__(self) -> datetime:
        return utc_now() if self.live else self.at

    def reach(self, timestamp_ms: int) -> None:
        self.at = max(self.at, datetime.fromtimestamp(timestamp_ms / 1000, UTC))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a replay: a file, written after the rows are durable."""

    path: Path
    log_id: str
    """Kept with the positions: going on with another log would mix two."""

    def read(self) -> dict[TopicPartition, int] | None:
        """Return positions by partition, or None if no replay was begun.

        Raises:
            CommandFailed: the file is damaged or another log's.
        """
        try:
            kept = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise CommandFailed(f"{self.path} is damaged; begin anew with --fresh") from None
        if kept["log"] != self.log_id:
            other = f"{self.path} is of {kept['log']}, not of {self.log_id}"
            raise CommandFailed(f"{other}; begin anew with --fresh")
        return {TopicPartition(topic, n): offset for topic, n, offset in kept["positions"]}

    def write(self, positions: Mapping[TopicPartition, int]) -> None:
        places = [[tp.topic, tp.partition, offset] for tp, offset in sorted(positions.items())]
        write_private(self.path, orjson.dumps({"log": self.log_id, "positions": places}))


class Rebuild:
    """A store that is being rebuilt, by the service's handlers."""

    def __init__(
        self, database: Database, directory: Path, settings: Settings, wants: Wants
    ) -> None:
        """`directory`: the claim-checked events."""
        self.database, self.settings, self.bodies = database, settings, FilesystemBodies(directory)
        self.audit, self.nowhere, self.clock = ClickHouseAudit(database), Nowhere(), LogClock()
        store, nowhere = ClickHouseStore(database), self.nowhere
        outside = (store, nowhere, nowhere, self.bodies, self.clock)
        self.handlers = Handlers(settings, *outside, wants=wants)

    async def begin(self, periods: Periods | None, *, resumed: bool) -> None:
        """Make the tables. `periods`: those of the running store, when units are made.

        Raises CommandFailed if there are rows of another origin.
        """
        await self.database.migrate()
        # Rows of another origin would look like differences, or be overwritten.
        tables = ("records", "reports", "releases")
        found = [await self.audit.span(table, after=None, until=None) for table in tables]
        rows = sum(span.count for span in found)
        if rows and not resumed:
            fault = f"{self.database.where} is not empty ({rows} rows)"
            raise CommandFailed(f"{fault}; name another place, or empty it first")
        await self.handlers.on_start()
        if periods is not None:
            self.handlers.units.periods = periods

    async def take(self, records: Sequence[ConsumerRecord]) -> None:
        """Handle a batch; returns when its rows are durable. Raises GaveUp."""
        self.clock.reach(max(record.timestamp for record in records))
        arrivals = [a for record in records if (a := await self._arrival(record))]
        await retried(partial(self.handlers.on_events, arrivals), RETRIES, name="replay")

    async def _arrival(self, record: ConsumerRecord) -> Arrival | None:
        """One message; None if its body was lost, which made it a dead letter."""
        try:
            value = await whole_value(record.value, record.headers, self.bodies)
        except (BodyMissing, Poison) as error:
            self.nowhere.dead[f"{record.topic}: {str(error).partition(':')[0]}"] += 1
            return None
        return arrival(replace(record, value=value))

    async def settle(self, *, end_sessions: bool) -> None:
        """Join the reports that can be joined by now, and expire the others; end idle sessions."""
        self.clock.live = True
        # A store that is to replace a lost store leaves open sessions to the service: it publishes
        # their ends, and the log may go on.
        horizon = None if end_sessions else Horizon(datetime.fromtimestamp(0, UTC))
        await self.handlers.sweep(caught_up=True, horizon=horizon)
        self.clock.live = False
