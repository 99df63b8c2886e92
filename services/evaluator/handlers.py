"""Arrivals of the evaluator: candidates and held-out samples."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from prometheus_client import Counter

from reefcommon import topics
from reefcommon.evaluation import is_held_out
from reefcommon.events import (
    AnyUnit,
    CandidateEvaluated,
    CandidateProposed,
    Evaluation,
    SampleReady,
)
from reefcommon.ids import digest
from reefkit.bus import EventPublisher
from reefkit.telemetry import current_traceparent
from services.evaluator.comparer import EvidenceStore
from services.evaluator.domain.replay import held_out
from services.evaluator.plans import Plans
from services.evaluator.promotions import Promotions
from services.evaluator.trials import Trials

log = structlog.get_logger()

_LOGGED = {"verdict", "strength", "reason", "candidate_score", "head_score"}
VERDICTS = Counter("reef_verdicts_total", "verdicts on candidates", ["scenario", "verdict"])


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Publishes verdicts. Their id follows from candidate and head: repeats are harmless."""

    events: EventPublisher
    now: Callable[[], datetime]

    async def publish(
        self,
        candidate: CandidateProposed,
        evaluation: Evaluation,
        partner: CandidateProposed | None = None,
    ) -> None:
        """Publish the verdict on a candidate, and on the partner that was compared with it."""
        wins = evaluation.verdict == "select"
        if partner is None:
            await self._publish(candidate, evaluation)
            return
        # The verdict that brings both is the last: a partner never waits for another then.
        await self._publish(partner, evaluation, joined=candidate.event_id if wins else None)
        await self._publish(candidate, evaluation, partner=partner if wins else None)

    async def _publish(
        self, candidate: CandidateProposed, evaluation: Evaluation, **pair: Any
    ) -> None:
        event = CandidateEvaluated(
            event_id="evl-" + digest("evaluated", candidate.event_id, evaluation.head_release_id),
            at=self.now(),
            scenario=candidate.scenario,
            traceparent=current_traceparent() or candidate.traceparent,
            candidate=candidate,
            evaluation=evaluation,
            **pair,
        )
        await self.events.publish(event, topics.EVALUATIONS)
        VERDICTS.labels(candidate.scenario, evaluation.verdict).inc()
        log.info(
            "candidate_evaluated",
            scenario=candidate.scenario,
            candidate=candidate.event_id,
            **evaluation.model_dump(include=_LOGGED),
        )


@dataclass(frozen=True, slots=True)
class Handlers:
    plans: Plans
    evidence: EvidenceStore
    trials: Trials

    async def on_sample(self, event: AnyUnit) -> None:
        """Keep a held-out sample if it is evidence. The recipes refuse it for training.

        The prompt of a failed answer may become a task.
        """
        if not isinstance(event, SampleReady):
            return
        await Promotions(self.plans, self.evidence).on_sample(event)
        if not is_held_out(event.event_id):
            return
        sample = held_out(event)
        if sample is not None and self.plans.accepts(event.scenario, sample.score):
            await self.evidence.add(event.scenario, sample, event.recorded_at.timestamp())
            await self.trials.count(event.scenario)

    async def on_candidate(self, event: CandidateProposed) -> None:
        await self.trials.add(event)
