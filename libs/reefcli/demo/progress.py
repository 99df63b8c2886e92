"""What has been seen so far, as one value that the view, the report and the last JSON line are made from."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from reefcommon.events import (
    CandidateEvaluated,
    Event,
    ReleasePublished,
    ReleaseRejected,
    SampleRefused,
    StepCompleted,
)


@dataclass(slots=True)
class Progress:
    """Counters and curves of one demonstration. Times are seconds since its start."""

    rewards: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    starting: list[str] = field(default_factory=list)
    steps: list[StepCompleted] = field(default_factory=list)
    verdicts: list[CandidateEvaluated] = field(default_factory=list)
    releases: list[ReleasePublished] = field(default_factory=list)
    rejected: list[ReleaseRejected] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    heldout: list[tuple[float, int, float]] = field(default_factory=list)
    """(time, sequence of the serving release, held-out reward of the served model)."""
    served_by: dict[str, int] = field(default_factory=dict)
    seen: set[tuple[str, str]] = field(default_factory=set)

    def take(self, event: Event) -> bool:
        """Add one event of the stream. False where it was there already."""
        kind = str(event.model_dump(include={"type"})["type"])
        if (kind, event.event_id) in self.seen:
            return False
        self.seen.add((kind, event.event_id))
        if isinstance(event, StepCompleted):
            self.steps.append(event)
        elif isinstance(event, CandidateEvaluated):
            self.verdicts.append(event)
        elif isinstance(event, ReleasePublished):
            self.releases.append(event)
        elif isinstance(event, ReleaseRejected):
            self.rejected.append(event)
        elif isinstance(event, SampleRefused):
            self.refused[event.reason] = self.refused.get(event.reason, 0) + 1
        return True

    @property
    def learned(self) -> list[ReleasePublished]:
        """Releases that came from training."""
        return [event for event in self.releases if event.release.operation == "training"]

    @property
    def consumed(self) -> int:
        """Samples that a step has trained on, or that were refused."""
        return sum(len(step.sample_ids) for step in self.steps) + sum(self.refused.values())

    @property
    def recent_reward(self) -> float | None:
        """Mean reward of the users' last 32 answers."""
        return fmean(self.rewards[-32:]) if self.rewards else None

    @property
    def max_lag(self) -> int:
        """The largest staleness that a step trained on."""
        return int(max((step.metrics.get("lag_max", 0.0) for step in self.steps), default=0))

    def summary(self, *, model: str, elapsed_s: float, reached: bool) -> dict[str, Any]:
        """The figures of the whole demonstration."""
        return {
            "model": model,
            "reached": reached,
            "elapsed_s": round(elapsed_s, 1),
            "heldout_first": round(self.heldout[0][2], 4) if self.heldout else None,
            "heldout_last": round(self.heldout[-1][2], 4) if self.heldout else None,
            "heldout_curve": [
                [round(at, 1), sequence, round(value, 4)] for at, sequence, value in self.heldout
            ],
            "releases_published": len(self.learned),
            "candidates_rejected": len(self.rejected),
            "steps": len(self.steps),
            "requests": len(self.rewards) + len(self.failures),
            "failed_requests": len(self.failures),
            "restarts": len(self.restarts),
            "max_lag_trained": self.max_lag,
            "samples_refused": self.refused,
            "answers_by_release": self.served_by,
            "chain": [
                f"{e.release.sequence}:{e.release.release_id}:{e.release.operation}"
                for e in self.releases
            ],
        }
