"""The signals of units in a job store: a unit is `unsignalled` until it has one."""

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import orjson

from reefcommon import topics
from reefcommon.events import SampleRefused, Signal, SignalComputed, Unit
from reefkit.jobs.recipe_store import Effects, Outgoing, RecipeStore, apply_effects
from reefkit.jobs.schema import load_unit, put_event

_UNDER_WAY = "signal under way: "


class SignalStore(RecipeStore):
    def unsignalled(self, binding: str, limit: int, skipped: Collection[str]) -> list[Unit]:
        """Return the oldest units that wait for their signal, without `skipped`."""
        query = (
            "select body from samples where binding = ? and state = 'unsignalled'"
            " and sample_id not in (select value from json_each(?)) order by seq limit ?"
        )
        without = orjson.dumps(list(skipped)).decode()
        return [load_unit(body) for (body,) in self._rows(query, binding, without, limit)]

    def oldest_unsignalled(self, binding: str, *, beyond: int) -> Iterator[Unit]:
        """Yield the oldest units without a signal until `beyond` are left.

        A unit that is yielded must be refused before the next is asked for.
        """
        count = "select count(*) from samples where binding = ? and state = 'unsignalled'"
        while (more := self._rows(count, binding)[0][0] - beyond) > 0:
            yield from self.unsignalled(binding, min(more, 100), ())

    def begin_signal(self, binding: str, unit_id: str) -> None:
        """Note that a signal is under way: the note stays if the process ends meanwhile."""
        again = "on conflict do update set value = value + 1"
        with self._transaction() as db:
            row = (binding, _UNDER_WAY + unit_id)
            db.execute(f"insert into marks values (?, ?, '1') {again}", row)

    def end_signal(self, binding: str, unit_id: str) -> None:
        with self._transaction() as db:
            row = (binding, _UNDER_WAY + unit_id)
            db.execute("delete from marks where binding = ? and name = ?", row)

    def cut_off(self, binding: str) -> dict[str, int]:
        """Return the units that still have a note, and how often their signal was begun.

        A unit that waited for a model loses its note: its code did not run.
        """
        waited = "select ? || subject from calls where binding = ? and body is null"
        with self._transaction() as db:
            row = (binding, _UNDER_WAY, binding)
            db.execute(f"delete from marks where binding = ? and name in ({waited})", row)
        query = (
            "select sample_id, value from marks join samples using (binding)"
            " where binding = ? and name = ? || sample_id and state = 'unsignalled'"
        )
        return {unit: int(begun) for unit, begun in self._rows(query, binding, _UNDER_WAY)}

    def signal_of(self, binding: str, unit_id: str) -> tuple[str, Signal | None] | None:
        """Return (event id, signal) of a unit; None if there is none yet."""
        query = "select signal_id, body from signals where binding = ? and unit_id = ?"
        for signal_id, body in self._rows(query, binding, unit_id):
            return signal_id, Signal.model_validate_json(body) if body is not None else None
        return None

    def keep_signal(
        self, binding: str, computed: SignalComputed, refusal: SampleRefused, effects: Effects
    ) -> bool:
        """Save a signal with its event and the writes of its call; False if it was there.

        The unit waits for `decide` then, or is refused by `refusal` if there is no signal.
        Raises StateConflict.
        """
        with self._transaction() as db:
            if not _put(db, binding, computed):
                return False
            apply_effects(db, effects)
            put_event(db, computed, topics.SIGNALS)
            _settle(db, binding, computed, refusal)
            return True

    def use_signal(self, binding: str, computed: SignalComputed, refusal: SampleRefused) -> None:
        """Give a unit a signal that is stored already."""
        with self._transaction() as db:
            _settle(db, binding, computed, refusal)

    def restore_signals(self, binding: str, computed: Sequence[SignalComputed], mark: str) -> int:
        """Keep signals of the log, and set `mark`. Returns the number of new signals."""
        with self._transaction() as db:
            new = sum(_put(db, binding, event) for event in computed)
            db.execute("insert or replace into marks values (?, ?, '1')", (binding, mark))
            return new

    def refuse_unsignalled(
        self, binding: str, refusals: Mapping[str, str], events: Outgoing, effects: Effects
    ) -> None:
        """Refuse units without a signal, and drop the kept answers to `effects.subject`."""
        with self._transaction() as db:
            apply_effects(db, Effects(binding, effects.subject))
            refuse(db, binding, refusals, events)

    def need_no_signals(self, binding: str) -> None:
        """Let all units wait for `decide`: the recipe has no signal any more."""
        with self._transaction() as db:
            change = "update samples set state = 'waiting' where binding = ?"
            db.execute(f"{change} and state = 'unsignalled'", (binding,))


def refuse(
    db: sqlite3.Connection, binding: str, refusals: Mapping[str, str], events: Outgoing
) -> None:
    db.executemany(
        "update samples set state = 'refused', body = null, reason = ?"
        " where binding = ? and sample_id = ? and state in ('waiting', 'unsignalled')",
        [(reason, binding, sample_id) for sample_id, reason in refusals.items()],
    )
    for event in events:
        put_event(db, *event)


def _put(db: sqlite3.Connection, binding: str, computed: SignalComputed) -> bool:
    body = computed.signal.model_dump_json() if computed.signal is not None else None
    row = (binding, computed.unit_id, computed.event_id, int(time.time() * 1000), body)
    return db.execute("insert or ignore into signals values (?, ?, ?, ?, ?)", row).rowcount > 0


def _settle(
    db: sqlite3.Connection, binding: str, computed: SignalComputed, refusal: SampleRefused
) -> None:
    if computed.signal is None:
        refuse(db, binding, {computed.unit_id: refusal.reason}, [(refusal, topics.TRAINING)])
        return
    db.execute(
        "update samples set state = 'waiting' where binding = ? and sample_id = ?"
        " and state = 'unsignalled'",
        (binding, computed.unit_id),
    )
