"""Turns and ended sessions, for the scenarios whose recipes want them."""

#     exchanges of a batch --> the lines of their sessions --> units: rows --> published --> marks
#     sweep: sessions that nothing came to for `session_idle_s` --> the same
#
# The marks say that an exchange had its effect, so they are written last, and in one insert. If the
# process dies before, the same exchanges come again and make the same units under the same ids.

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from reefcommon import topics
from reefcommon.errors import Poison
from reefcommon.events import InferenceRecorded, SessionEnded, TurnFollowed, UnitKind, unit_kind
from reefkit.bus import EventPublisher
from services.experience import ports
from services.experience.domain.conversation import request_messages
from services.experience.domain.line import Changes, Incoming, Line
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Entry, Key
from services.experience.domain.units import is_side_call, session_units, turn_unit
from services.experience.metrics import UNITS, UNITS_REFUSED
from services.experience.settings import Settings
from services.experience.tagging import SessionTags
from services.experience.wants import EVER, Periods, Wants

log = structlog.get_logger()

# A record may be this much later in the log than its own time: the gateway sends it, or spools it.
LATE = timedelta(seconds=60)
SWEEP_PAGE = 20

PART = 500

Records = Mapping[str, Record]
Made = TurnFollowed | SessionEnded
Texts = Callable[[InferenceRecorded], Awaitable[InferenceRecorded]]


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far the log was handled: its events up to `at`, in all partitions but those `behind`.

    `partitions` None: this process has all of them.
    """

    at: datetime
    behind: frozenset[int] = frozenset()
    partitions: frozenset[int] | None = None


@dataclass(slots=True)
class Units:
    """The lines of the sessions. They are not shared: batches and sweeps come in turns."""

    settings: Settings
    periods: Periods
    store: ports.ExperienceStore
    publisher: EventPublisher
    texts: Texts
    tags: SessionTags = field(default_factory=SessionTags)
    _lines: OrderedDict[Key, Line] = field(default_factory=OrderedDict)
    _open: dict[Key, tuple[datetime, int]] = field(default_factory=dict)
    _handled: dict[int, datetime] = field(default_factory=dict)
    _partitions: frozenset[int] | None = None
    # Whether another process may have changed lines, or this process has just begun.
    _unread: bool = True

    @property
    def idle(self) -> timedelta:
        return timedelta(seconds=self.settings.session_idle_s)

    def __len__(self) -> int:
        return len(self._open)

    async def begin(self, wants: Wants, now: datetime) -> None:
        """Keep since when units are wanted, and until when. Raises Unavailable."""
        known = Periods(tuple(await self.store.periods()))
        # In a store that is new all exchanges of the log are to come.
        since = now if wants and await self.store.has_records() else EVER
        changed = known.changed(wants, now, since)
        await self.store.insert_periods(changed)
        self.periods = known.updated(changed)

    def reread(self) -> None:
        """Read all lines from the store again: another process has handled their log meanwhile."""
        self._lines.clear()
        self._unread = True

    async def take(
        self,
        entries: Iterable[Entry],
        records: Records,
        partitions: Mapping[str, int],
        known: Iterable[str],
    ) -> None:
        """Take the exchanges of a batch, whose rows are durable. May be repeated.

        `known`: the records that had rows before the batch. Raises Unavailable.
        """
        known, sessions = set(known), dict[Key, list[Entry]]()
        for entry in entries:
            self._reached(partitions[entry.record_id], entry.at)
            if self.periods.covers(entry.scenario, entry.at):
                place, tags = records[entry.record_id].place, records[entry.record_id].event.tags
                if entry.record_id not in known and not is_side_call(tags):
                    self.tags.saw(entry.scenario, tagged=entry.tag is not None)
                sessions.setdefault((entry.scenario, place.session_id), []).append(entry)
        if not sessions:
            return
        new = {
            key
            for key, (first, *_) in sessions.items()
            if first.record_id not in known and records[first.record_id].place.sequence == 1
        }
        lines = await self._read(sessions.keys(), new)
        changes = {key: Changes() for key in sessions}
        for key, own in sessions.items():
            for entry in sorted(own, key=lambda entry: records[entry.record_id].place.sequence):
                record = records[entry.record_id]
                if record.place.sequence > lines[key].sequence:
                    incoming = await self._incoming(entry, record, partitions[entry.record_id])
                    lines[key].take(incoming, self.idle, changes[key])
        await self._keep(lines, changes, records)

    async def sweep(self, horizon: Horizon) -> None:
        """End the sessions that have been idle for too long before `horizon`. Raises Unavailable.

        May be repeated.
        """
        if not self.periods.rows:
            return
        if horizon.partitions != self._partitions:
            self._partitions = horizon.partitions
            self.reread()
        if self._unread:
            runs = await self.store.open_runs()
            self._open = {run.key: (run.last_at, run.partition) for run in runs}
            self._unread = False
        places = {place for _, place in self._open.values()}
        until = {place: self._until(horizon, place) for place in places}
        due = [
            key
            for key, (last_at, place) in self._open.items()
            if (at := until[place]) is not None and last_at + self.idle < at
        ]
        for start in range(0, len(due), SWEEP_PAGE):
            page = due[start : start + SWEEP_PAGE]
            lines = await self._read(page, ())
            changes = {key: Changes() for key in page}
            for key, line in lines.items():
                at = until[self._open[key][1]]
                if at is not None:
                    line.expire(at, self.idle, changes[key])
            await self._keep(lines, changes, {})

    def _until(self, horizon: Horizon, partition: int) -> datetime | None:
        """Return the time up to which all events of a partition were seen; None: not known."""
        if horizon.partitions is not None and partition not in horizon.partitions:
            return None
        late = min(LATE, self.idle)
        if partition not in horizon.behind:
            return horizon.at - late
        handled = self._handled.get(partition)
        return handled and handled - late

    def _reached(self, partition: int, at: datetime) -> None:
        self._handled[partition] = max(self._handled.get(partition, at), at)

    async def _read(self, keys: Iterable[Key], new: Iterable[Key]) -> dict[Key, Line]:
        """Return copies of the lines, which a failure leaves as they were."""
        wanted = list(keys)
        missing = set(wanted) - self._lines.keys() - set(new)
        found = await self.store.marks(missing) if missing else {}
        for key in wanted:
            if key not in self._lines:
                self._lines[key] = Line(found.get(key, ()))
            self._lines.move_to_end(key)
        return {key: self._lines[key].copy() for key in wanted}

    async def _incoming(self, entry: Entry, record: Record, partition: int) -> Incoming:
        event = record.event
        whole = await self.texts(event)
        return Incoming(
            record_id=entry.record_id,
            sequence=record.place.sequence,
            prints=entry.fingerprint,
            messages=request_messages(whole.request or {}, whole.api),
            began_at=event.at - timedelta(milliseconds=event.duration_ms),
            at=event.at,
            partition=partition,
            tagged=entry.tag is not None,
            side=is_side_call(event.tags),
            last=event.session_end,
        )

    async def _keep(
        self, lines: Mapping[Key, Line], changes: Mapping[Key, Changes], records: Records
    ) -> None:
        async for units in self._made(changes, records):
            await self._emit(units)
        marks = [(key, mark) for key, own in changes.items() for mark in own.marks.values()]
        await self.store.insert_marks(marks)
        for key, line in lines.items():
            self._lines[key] = line
            if line.last is None:
                self._open.pop(key, None)
            else:
                self._open[key] = (line.last_at, line.last.partition)
        while len(self._lines) > self.settings.max_open_sessions:
            self._lines.popitem(last=False)

    async def _made(
        self, changes: Mapping[Key, Changes], records: Records
    ) -> AsyncIterator[list[Made]]:
        # In parts, which bound the records that are in memory at once.
        turns = [end for key, c in changes.items() if self._may(key, "turn") for end in c.turns]
        runs = [end for key, c in changes.items() if self._may(key, "session") for end in c.runs]
        for start in range(0, len(turns), PART):
            ends = turns[start : start + PART]
            whole = await self._whole([end.record_id for end in ends], records)
            pairs = [(self._wanted(whole, [end.record_id], "turn"), end) for end in ends]
            yield [turn_unit(found[0], end) for found, end in pairs if found]
        for end in runs:
            whole = await self._whole(end.record_ids, records)
            yield [*session_units(self._wanted(whole, end.record_ids, "session"), end)]

    async def _whole(self, names: Sequence[str], records: Records) -> dict[str, Record]:
        missing = set(names) - records.keys()
        found = {**records, **(await self.store.records(missing) if missing else {})}
        return {
            name: replace(found[name], event=await self.texts(found[name].event))
            for name in names
            if name in found
        }

    def _may(self, key: Key, kind: str) -> bool:
        return any((row.scenario, row.kind) == (key[0], kind) for row in self.periods.rows)

    def _wanted(self, records: Records, names: Sequence[str], kind: UnitKind) -> list[Record]:
        # A record whose retention is over is gone, and so is its unit.
        found = [records[name] for name in names if name in records]
        events = ((record, record.event) for record in found)
        return [r for r, e in events if self.periods.covers(e.scenario, e.at, kind)]

    async def _emit(self, units: Sequence[Made]) -> None:
        if not units:
            return
        try:
            # The row first: a recipe may ask for a unit as soon as it has it.
            await self.store.insert_units(units)
        except Poison as error:
            if len(units) == 1:
                _refuse(units[0], error)
                return
            for unit in units:
                await self._emit([unit])
            return
        await asyncio.gather(*(self._send(unit) for unit in units))

    async def _send(self, unit: Made) -> None:
        try:
            await self.publisher.publish(unit, topics.SAMPLES)
        except Poison as error:
            _refuse(unit, error)
            return
        UNITS.labels(unit_kind(unit), unit.untrainable or "").inc()


def _refuse(unit: Made, error: Poison) -> None:
    # The record stays readable. Its exchange was handled: no dead letter could mend the unit.
    UNITS_REFUSED.inc()
    log.error("unit_refused", unit_id=unit.event_id, reason=str(error))
