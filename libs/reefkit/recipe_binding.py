"""The binding of a recipe to a scenario, and the events that all hosts make alike."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeVar

from reefcommon import ids
from reefcommon.config import ServeConfig
from reefcommon.config_sections import OnStale, RecipeBinding
from reefcommon.evaluation import choose
from reefcommon.events import Lineage, SampleRefused
from reefcommon.recipe import Recipe, Refusal, WeightRecipe
from reefcommon.recipe_loading import load_recipe

R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True, slots=True)
class Binding(Generic[R]):
    """A recipe that learns from a scenario. `dotted` is its `package.module:Class`.

    `holds_out`: judged by replay, so held-out samples are not trained on. `unjudged`: candidates
    are published without a comparison and without a person.
    """

    scenario: str
    dotted: str
    recipe: R
    holds_out: bool = False
    on_stale: OnStale = "merge"
    unjudged: bool = False
    requires_harness: Literal["head"] | int | None = None

    @property
    def key(self) -> str:
        """Return the identity in the job store and in job ids."""
        return f"{self.scenario}/{self.dotted}"

    def lineage(self, job_id: str, sample_ids: tuple[str, ...], step: int) -> Lineage:
        name, knobs = self.recipe.name, self.recipe.knobs.model_dump(mode="json")
        return Lineage(job_id=job_id, sample_ids=sample_ids, recipe=name, knobs=knobs, step=step)

    def refusal(self, refused: Refusal, at: datetime) -> SampleRefused:
        return refusal_event(self.key, self.recipe.name, refused, at)


def refusal_event(key: str, recipe: str, refused: Refusal, at: datetime) -> SampleRefused:
    """Return the refusal of a sample. The id depends on sample and `key` alone."""
    sample, reason, lag = refused
    return SampleRefused(
        event_id="ref-" + ids.digest("refused", key, sample.event_id),
        at=at,
        scenario=sample.scenario,
        traceparent=sample.traceparent,
        recipe=recipe,
        sample_id=sample.event_id,
        reason=reason,
        lag=lag,
    )


def bindings(served: ServeConfig, kind: type[R]) -> tuple[Binding[R], ...]:
    """Return the bindings whose recipe is of this kind. Raises BadConfig."""
    return tuple(
        _binding(served, item, recipe)
        for item in served.reef
        if isinstance(recipe := load_recipe(item.recipe, item.knobs), kind)
    )


def _binding(served: ServeConfig, item: RecipeBinding, recipe: R) -> Binding[R]:
    chosen = choose(served, item.scenario, item.recipe)
    holds_out = isinstance(recipe, WeightRecipe) and chosen.withholds_samples
    unjudged = chosen.policy == "always" and item.review == "auto"
    more = (holds_out, item.on_stale, unjudged, item.requires_harness)
    return Binding(item.scenario, item.recipe, recipe, *more)
