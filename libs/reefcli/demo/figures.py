"""The figures of a demonstration, for the view, the report and the JSON line."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic
from typing import Any

from reefcli.loop_events import LoopEvent
from reefcommon.events import (
    CandidateEvaluated,
    CandidateProposed,
    ReleasePublished,
    ReleaseRejected,
    SampleRefused,
    SignalComputed,
    StepCompleted,
)


def interval_text(mean: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{mean:.4f}" if low == high else f"{mean:.3f} [{low:.3f}, {high:.3f}]"


_LEARNED = ("training", "harness")


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figure of a release: mean of `answers` fresh answers, 95 % interval."""

    at_s: float
    sequence: int
    release_id: str
    mean: float
    low: float
    high: float
    answers: int

    def __str__(self) -> str:
        return interval_text(self.mean, (self.low, self.high))

    @property
    def counted(self) -> str:
        """The figure with the number of its answers."""
        return f"{self} of {self.answers} answers"

    def as_json(self) -> dict[str, Any]:
        return {
            "at_s": round(self.at_s, 1),
            "release": self.sequence,
            "mean": round(self.mean, 4),
            "interval": [round(self.low, 4), round(self.high, 4)],
            "answers": self.answers,
        }


@dataclass(slots=True)
class Figures:
    """Counters and curves. Times are seconds since the start."""

    rewards: list[float] = field(default_factory=list)
    experienced: int = 0
    """Answers of this run that become units of experience."""
    signals: int = 0
    failures: list[str] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    steps: list[StepCompleted] = field(default_factory=list)
    releases: list[ReleasePublished] = field(default_factory=list)
    rejected: list[ReleaseRejected] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    heldout: list[Measurement] = field(default_factory=list)
    final: Measurement | None = None
    """Measured after the run ended, with answers that decided nothing."""
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    answered_by: dict[str, int] = field(default_factory=dict)
    """Users' answers by the release that gave them; measurements are not counted."""
    of_earlier_runs: int = 0
    candidates: int = 0
    comparing: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Candidates without a verdict: id -> (their number in this run, when they came)."""
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _judged: set[str] = field(default_factory=set)

    def take(self, event: LoopEvent, *, of_last_run: bool = False) -> bool:
        """Add an event. False if it was added before. Of the last run the releases count alone."""
        # The embedded broker may give a record twice while it merges.
        if (event.type, event.event_id) in self._seen:
            return False
        self._seen.add((event.type, event.event_id))
        if of_last_run and not isinstance(event, ReleasePublished):
            return True
        self.of_earlier_runs += of_last_run
        match event:
            case CandidateProposed():
                self.candidates += 1
                # Of two topics: a quick verdict may be read before its candidate.
                if event.event_id not in self._judged:
                    self.comparing[event.event_id] = (self.candidates, monotonic())
            case CandidateEvaluated():
                self._judged.add(event.candidate.event_id)
                self.comparing.pop(event.candidate.event_id, None)
            case StepCompleted():
                self.steps.append(event)
            case ReleasePublished():
                self.releases.append(event)
            case ReleaseRejected():
                self.rejected.append(event)
            case SignalComputed():
                self.signals += 1
            case SampleRefused():
                self.refused[event.reason] = self.refused.get(event.reason, 0) + 1
        return True

    @property
    def learned(self) -> list[ReleasePublished]:
        return [event for event in self.releases if event.release.operation in _LEARNED]

    @property
    def consumed(self) -> int:
        """Samples that a step has trained on, or that were refused."""
        return sum(len(step.sample_ids) for step in self.steps) + sum(self.refused.values())

    @property
    def waiting(self) -> int:
        """Answers that no step has trained on and no recipe has refused."""
        return max(self.experienced - self.consumed, 0)

    @property
    def recent_reward(self) -> float | None:
        return fmean(self.rewards[-32:]) if self.rewards else None

    @property
    def max_lag(self) -> int:
        """The largest staleness that a step trained on, in releases."""
        return int(max((step.metrics.get("lag_max", 0.0) for step in self.steps), default=0))

    @property
    def improved(self) -> bool:
        """Whether the final interval lies above that of the first release."""
        return bool(self.heldout and self.final and self.final.low > self.heldout[0].high)

    def summary(self, *, model: str, elapsed_s: float, reached: bool) -> dict[str, Any]:
        first = self.heldout[0].as_json() if self.heldout else {}
        last = self.final.as_json() if self.final else {}
        return {
            "model": model,
            "reached": reached,
            "elapsed_s": round(elapsed_s, 1),
            "heldout_first": first.get("mean"),
            "heldout_first_interval": first.get("interval"),
            "heldout_last": last.get("mean"),
            "heldout_last_interval": last.get("interval"),
            "heldout_first_answers": first.get("answers"),
            "heldout_answers": last.get("answers"),
            "heldout_curve": [point.as_json() for point in self.heldout],
            "answers_before": self.before,
            "answers_after": self.after,
            "releases_published": len(self.learned),
            "releases_of_earlier_runs": self.of_earlier_runs,
            "candidates_rejected": len(self.rejected),
            "steps": len(self.steps),
            "signals": self.signals,
            "requests": self.experienced + len(self.failures),
            "failed_requests": len(self.failures),
            "restarts": len(self.restarts),
            "max_lag_trained": self.max_lag,
            "samples_refused": self.refused,
            "answers_by_release": self.answered_by,
            "chain": [
                f"{e.release.sequence}:{e.release.release_id}:{e.release.operation}"
                for e in self.releases
            ],
        }
