"""The tables of recipes in a job store: their state, signals, calls of models, and budgets."""

import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from reefcommon.errors import Conflict
from reefcommon.events import Event
from reefcommon.topics import Topic
from reefkit.jobs.database import Database

Outgoing = Sequence[tuple[Event, Topic]]
LOGGED_CALLS = 5_000
_NOTED = "noted:"


class StateConflict(Conflict):
    """A value that a call has read was changed before the call ended. The call is made again."""


@dataclass(frozen=True, slots=True)
class Write:
    """A value of a recipe's state: JSON, a blob, or dropped if both are None."""

    key: str
    json: str | None = None
    blob: bytes | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """The traces of a call of recipe code, saved with its result.

    `reads` holds the version of each value that it has read, `listed` the keys by prefix. The kept
    answers to `subject` are dropped.
    """

    binding: str
    subject: str = ""
    writes: tuple[Write, ...] = ()
    reads: Mapping[str, int] = field(default_factory=dict)
    listed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a model: calls, tokens, and money."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class CallKey:
    """The identity of a call: the `ordinal`-th with this request inside a subject."""

    binding: str
    subject: str
    request: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call of a model, for the log. `body`: the answer as JSON."""

    binding: str
    subject: str
    model: str
    purpose: str
    use: Use
    seconds: float
    outcome: str = "ok"
    body: bytes | None = None


class RecipeStore(Database):
    # ------------------------------------------------------------------ state

    def state_value(self, binding: str, key: str) -> tuple[int, str | None, bytes | None] | None:
        """Return (version, JSON, blob) of a value."""
        query = "select version, json, blob from state where binding = ? and key = ?"
        rows = self._rows(query, binding, key)
        return rows[0] if rows else None

    def state_keys(self, binding: str, prefix: str = "") -> list[str]:
        with self._reading() as db:
            return _keys(db, binding, prefix)

    def state_bytes(self, binding: str, without: Collection[str] = ()) -> int:
        """Return the size of all values, but those of the keys `without`."""
        query = (
            "select coalesce(sum(coalesce(length(blob), length(json))), 0) from state"
            " where binding = ? and key not in (select value from json_each(?))"
        )
        return int(self._rows(query, binding, orjson.dumps(list(without)).decode())[0][0])

    def state_rows(self, binding: str) -> list[dict[str, Any]]:
        """Return key, version, JSON and size of each value, for people."""
        query = (
            "select key, version, substr(json, 1, 2000), coalesce(length(blob), length(json))"
            " from state where binding = ? order by key"
        )
        names = ("key", "version", "json", "bytes")
        return [dict(zip(names, row, strict=True)) for row in self._rows(query, binding)]

    def apply(self, effects: Effects, *, check: bool = True) -> None:
        """Save the writes of a call. Raises StateConflict if `check` and its reads are old."""
        with self._transaction() as db:
            apply_effects(db, effects, check=check)

    # ------------------------------------------------------------------ calls and budgets

    def kept_answer(self, key: CallKey) -> bytes | None:
        query = f"select body from calls where {_CALL}"
        rows = self._rows(query, *_key(key))
        return rows[0][0] if rows else None

    def begin_call(self, key: CallKey | None, model: str, limits: Mapping[str, float]) -> str:
        """Count a call, once for each `key`. Returns the limit that is used up, if any.

        `limits`: by `calls`, `tokens`, `cost`.
        """
        with self._transaction() as db:
            if key is not None:
                query = f"select 1 from calls where {_CALL}"
                if db.execute(query, _key(key)).fetchone():
                    return ""
            use = _use(db, model)
            for name, limit in limits.items():
                if getattr(use, name) >= limit:
                    return f"{getattr(use, name):g} of {limit:g} {name} used"
            if key is not None:
                db.execute("insert into calls values (?, ?, ?, ?, ?, null, 0)", (*_key(key), model))
            _add(db, model, Use(calls=1))
            return ""

    def end_call(
        self, key: CallKey | None, end: CallEnd, *, returned: bool = False, logged: bool = True
    ) -> None:
        """Keep and log a call. `returned`: it does not count."""
        use = end.use
        with self._transaction() as db:
            if key is not None:
                query = f"update calls set body = ?, tokens = ? where {_CALL}"
                db.execute(query, (end.body, use.tokens, *_key(key)))
            _add(db, end.model, Use(-1) if returned else use)
            if not logged:
                return
            db.execute(
                "insert into call_log (at, binding, subject, model, purpose, prompt_tokens,"
                " completion_tokens, seconds, outcome) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(time.time(), end.binding, end.subject, end.model, end.purpose),
                    *(use.prompt_tokens, use.completion_tokens, end.seconds, end.outcome),
                ),
            )
            oldest = "(select max(seq) from call_log) - ?"
            db.execute(f"delete from call_log where seq <= {oldest}", (LOGGED_CALLS,))

    def used(self, model: str) -> Use:
        with self._reading() as db:
            return _use(db, model)

    def asked_for(self, binding: str, subject: str) -> tuple[int, int]:
        """Return the number of calls for a subject, and their tokens."""
        query = "select count(*), coalesce(sum(tokens), 0) from calls"
        rows = self._rows(f"{query} where binding = ? and subject = ?", binding, subject)
        return int(rows[0][0]), int(rows[0][1])

    def logged_calls(self, binding: str, limit: int) -> list[dict[str, Any]]:
        """Return the newest calls of a binding, oldest first."""
        names = "at, subject, model, purpose, prompt_tokens, completion_tokens, seconds, outcome"
        query = f"select {names} from call_log where binding = ? order by seq desc limit ?"
        rows = self._rows(query, binding, limit)[::-1]
        return [dict(zip(names.split(", "), row, strict=True)) for row in rows]

    # ------------------------------------------------------------------ verdicts

    def verdicts(self, binding: str) -> list[tuple[int, str]]:
        """Return (number, JSON) of the verdicts that the recipe has not taken, in order."""
        query = "select seq, body from verdicts where binding = ? order by seq"
        return self._rows(query, binding)

    def end_verdict(self, number: int, effects: Effects) -> None:
        with self._transaction() as db:
            apply_effects(db, effects)
            db.execute("delete from verdicts where seq = ?", (number,))

    # ------------------------------------------------------------------ marks

    def mark(self, binding: str, name: str) -> str | None:
        query = "select value from marks where binding = ? and name = ?"
        rows = self._rows(query, binding, name)
        return rows[0][0] if rows else None

    def was_noted(self, binding: str, call: str) -> bool:
        return self.mark(binding, _NOTED + call) is not None

    def begin_noted(
        self, binding: str, call: str, place: str, now: float, at_most: int, again_after_s: float
    ) -> int:
        """Note that a call is under way. Returns 0, or how often the host has ended in it.

        The note is not made after `at_most` ends in this place, until `again_after_s` is over.
        """
        with self._transaction() as db:
            query = "select value from marks where binding = ? and name = ?"
            row = db.execute(query, (binding, _NOTED + call)).fetchone()
            before, ends, at = orjson.loads(row[0]) if row else (place, 0, 0.0)
            ends = ends if before == place else 0
            if ends >= at_most and 0 <= now - at < again_after_s:
                return int(ends)
            note = orjson.dumps([place, ends + 1, now]).decode()
            db.execute(
                "insert or replace into marks values (?, ?, ?)", (binding, _NOTED + call, note)
            )
            return 0

    def end_noted(self, binding: str, call: str) -> None:
        with self._transaction() as db:
            row = (binding, _NOTED + call)
            db.execute("delete from marks where binding = ? and name = ?", row)

    def drop_marks(self, name: str) -> None:
        with self._transaction() as db:
            db.execute("delete from marks where name = ?", (name,))


# ------------------------------------------------------------------ inside a transaction


def apply_effects(db: sqlite3.Connection, effects: Effects, *, check: bool = True) -> None:
    binding = effects.binding
    if check:
        for key, version in effects.reads.items():
            query = "select version from state where binding = ? and key = ?"
            row = db.execute(query, (binding, key)).fetchone()
            if (row[0] if row else 0) != version:
                raise StateConflict(f"{key} was changed by another call of the recipe")
        for prefix, keys in effects.listed.items():
            if tuple(_keys(db, binding, prefix)) != keys:
                raise StateConflict(f"keys of {prefix!r} were changed by another call")
    if effects.writes:
        version = _next_version(db, binding)
        for write in effects.writes:
            if write.json is None and write.blob is None:
                gone = "delete from state where binding = ? and key = ?"
                db.execute(gone, (binding, write.key))
            else:
                row = (binding, write.key, version, write.json, write.blob)
                db.execute("insert or replace into state values (?, ?, ?, ?, ?)", row)
    if effects.subject:
        kept = "delete from calls where binding = ? and subject = ?"
        db.execute(kept, (binding, effects.subject))


_CALL = "binding = ? and subject = ? and request = ? and ordinal = ?"


def _key(key: CallKey) -> tuple[str, str, str, int]:
    return key.binding, key.subject, key.request, key.ordinal


def _keys(db: sqlite3.Connection, binding: str, prefix: str) -> list[str]:
    query = "select key from state where binding = ? and substr(key, 1, ?) = ? order by key"
    return [key for (key,) in db.execute(query, (binding, len(prefix), prefix))]


def _next_version(db: sqlite3.Connection, binding: str) -> int:
    row = (binding, "state_version")
    db.execute("insert or ignore into marks values (?, ?, '0')", row)
    add = "update marks set value = value + 1 where binding = ? and name = ? returning value"
    return int(db.execute(add, row).fetchone()[0])


def _use(db: sqlite3.Connection, model: str) -> Use:
    names = "calls, prompt_tokens, completion_tokens, cost"
    row = db.execute(f"select {names} from budgets where model = ?", (model,)).fetchone()
    return Use(*row) if row else Use()


def _add(db: sqlite3.Connection, model: str, use: Use) -> None:
    db.execute("insert or ignore into budgets values (?, 0, 0, 0, 0)", (model,))
    db.execute(
        "update budgets set calls = calls + ?, prompt_tokens = prompt_tokens + ?,"
        " completion_tokens = completion_tokens + ?, cost = cost + ? where model = ?",
        (use.calls, use.prompt_tokens, use.completion_tokens, use.cost, model),
    )
