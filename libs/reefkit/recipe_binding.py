"""What every service that hosts recipes says alike: who learns from what, where a candidate comes from, what is never used."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from reefcommon import ids
from reefcommon.events import Lineage, SampleReady, SampleRefused
from reefcommon.recipe import Recipe

R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True, slots=True)
class Binding(Generic[R]):
    """One recipe, by its `package.module:Class` and as loaded, that learns from one scenario."""

    scenario: str
    dotted: str
    recipe: R

    @property
    def key(self) -> str:
        """The identity of this binding in the ledger and in job ids."""
        return f"{self.scenario}/{self.dotted}"

    def lineage(self, job_id: str, sample_ids: tuple[str, ...], step: int) -> Lineage:
        """Where a job's candidate comes from."""
        knobs = self.recipe.knobs.model_dump(mode="json")
        return Lineage(
            job_id=job_id, sample_ids=sample_ids, recipe=self.recipe.name, knobs=knobs, step=step
        )

    def refusal(
        self, sample: SampleReady, reason: str, lag: int | None, at: datetime
    ) -> SampleRefused:
        """The event of a sample that this recipe will never use; the same sample is refused once, however often it is told."""
        return SampleRefused(
            event_id="ref-" + ids.digest("refused", self.key, sample.event_id),
            at=at,
            scenario=self.scenario,
            traceparent=sample.traceparent,
            recipe=self.recipe.name,
            sample_id=sample.event_id,
            reason=reason,
            lag=lag,
        )
