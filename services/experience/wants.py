"""The kinds of units that the bound recipes of a scenario want, by `consumes`, and since when."""

# Recipes come and go. An exchange makes a unit of a kind if a recipe wanted that kind at the time
# of the exchange. The periods are kept, so a second reading of the log makes the same units.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from reefcommon.config import load
from reefcommon.events import UnitKind
from reefcommon.recipe_loading import load_recipe

Kinds = frozenset[UnitKind]
NONE: Kinds = frozenset()
EVER = datetime(1970, 1, 1, tzinfo=UTC)
OPEN = datetime(2200, 1, 1, tzinfo=UTC)
"""The end of a period that goes on."""


@dataclass(frozen=True, slots=True)
class Wants:
    """Kinds by scenario. Samples of reports are made in any case, and are not in it."""

    kinds: Mapping[str, Kinds] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def of(self, scenario: str) -> Kinds:
        return self.kinds.get(scenario, NONE)

    @classmethod
    def read(cls, path: Path | None) -> "Wants":
        """Read a `serve.yaml`; without a file only reports are wanted. Raises BadConfig."""
        kinds: dict[str, Kinds] = {}
        for binding in load(path).reef if path is not None else ():
            wanted = load_recipe(binding.recipe, binding.knobs).consumes
            if own := frozenset(wanted) - {"report"}:
                kinds[binding.scenario] = kinds.get(binding.scenario, NONE) | own
        return cls(kinds)


@dataclass(frozen=True, slots=True)
class Period:
    """A time in which a recipe wants units of a kind: `since` <= time < `until`."""

    scenario: str
    kind: str
    since: datetime
    until: datetime = OPEN


@dataclass(frozen=True, slots=True)
class Periods:
    rows: tuple[Period, ...] = ()

    @classmethod
    def begun(cls, wants: Wants, since: datetime = EVER) -> "Periods":
        pairs = [(scenario, kind) for scenario, own in wants.kinds.items() for kind in own]
        return cls(tuple(Period(*pair, since) for pair in sorted(pairs)))

    def covers(self, scenario: str, at: datetime, kind: str | None = None) -> bool:
        """Return whether units of an exchange of this time are wanted; None: of any kind."""
        return any(
            row.scenario == scenario and row.since <= at < row.until and kind in (None, row.kind)
            for row in self.rows
        )

    def changed(self, wants: Wants, now: datetime, since: datetime) -> list[Period]:
        """Return the rows to write: new wants begin `since`, others end `now`."""
        going_on = {(row.scenario, row.kind): row for row in self.rows if row.until == OPEN}
        wanted = {(row.scenario, row.kind): row for row in Periods.begun(wants, since).rows}
        ended = [replace(row, until=now) for key, row in going_on.items() if key not in wanted]
        return [*ended, *(row for key, row in wanted.items() if key not in going_on)]

    def updated(self, rows: Iterable[Period]) -> "Periods":
        known = {(row.scenario, row.kind, row.since): row for row in (*self.rows, *rows)}
        return Periods(tuple(known.values()))
