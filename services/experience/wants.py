"""The kinds of units that the bound recipes of a scenario want, by `consumes`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reefcommon.config import load
from reefcommon.events import UnitKind
from reefcommon.recipe_loading import load_recipe

Kinds = frozenset[UnitKind]
NONE: Kinds = frozenset()


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
