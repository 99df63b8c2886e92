"""Arrivals of the evaluator: candidates get a verdict, one sample in five is kept as evidence."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog
from prometheus_client import Counter, Histogram

from reefcommon import topics
from reefcommon.evaluation import is_held_out
from reefcommon.events import CandidateEvaluated, CandidateProposed, Evaluation, SampleReady
from reefcommon.ids import digest
from reefkit.bus import EventPublisher
from reefkit.telemetry import current_traceparent
from services.evaluator.domain.replay import held_out
from services.evaluator.judge import EvidenceStore, Judge

log = structlog.get_logger()

VERDICTS = Counter("reef_verdicts_total", "verdicts on candidates", ["scenario", "verdict"])
DURATION = Histogram(
    "reef_evaluation_seconds",
    "time from a candidate to its verdict",
    buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300),
)


@dataclass(frozen=True, slots=True)
class WaitingCandidate:
    """A candidate without a verdict, and the evidence that it lacks."""

    scenario: str
    candidate_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers. A verdict may be given twice: its id is that of the candidate and the head."""

    judge: Judge
    evidence: EvidenceStore
    events: EventPublisher
    now: Callable[[], datetime]

    async def on_sample(self, event: SampleReady) -> None:
        """Keep a held-out sample if it is evidence. The recipes refuse it for training."""
        sample = held_out(event) if is_held_out(event.event_id) else None
        if sample is not None and self.judge.plans.accepts(event.scenario, sample.score):
            await self.evidence.add(event.scenario, sample, event.recorded_at.timestamp())

    async def on_candidate(self, event: CandidateProposed) -> None:
        """Judge a candidate, or keep it until there is enough evidence."""
        if reason := await self._verdict(event):
            await self.evidence.wait(event)
            log.info(
                "candidate_waits", scenario=event.scenario, candidate=event.event_id, reason=reason
            )

    async def retry_waiting(self) -> list[WaitingCandidate]:
        """Re-evaluate waiting candidates that now have enough evidence. Returns the others."""
        waiting = []
        for candidate in await self.evidence.waiting():
            if reason := await self._verdict(candidate):
                waiting.append(WaitingCandidate(candidate.scenario, candidate.event_id, reason))
            else:
                await self.evidence.done(candidate)
        return waiting

    async def _verdict(self, candidate: CandidateProposed) -> str:
        """Judge and publish. Returns why there is no verdict yet; "" if there is."""
        started = time.perf_counter()
        evaluation = await self.judge.judge(candidate)
        if isinstance(evaluation, str):
            return evaluation
        duration_s = time.perf_counter() - started
        DURATION.observe(duration_s)
        await self._publish(candidate, evaluation.model_copy(update={"duration_s": duration_s}))
        return ""

    async def _publish(self, candidate: CandidateProposed, evaluation: Evaluation) -> None:
        event = CandidateEvaluated(
            event_id="evl-" + digest("evaluated", candidate.event_id, evaluation.head_release_id),
            at=self.now(),
            scenario=candidate.scenario,
            traceparent=current_traceparent() or candidate.traceparent,
            candidate=candidate,
            evaluation=evaluation,
        )
        await self.events.publish(event, topics.EVALUATIONS)
        VERDICTS.labels(candidate.scenario, evaluation.verdict).inc()
        log.info(
            "candidate_evaluated",
            scenario=candidate.scenario,
            candidate=candidate.event_id,
            verdict=evaluation.verdict,
            strength=evaluation.strength,
            reason=evaluation.reason,
            candidate_score=evaluation.candidate_score,
            head_score=evaluation.head_score,
        )
