"""What arrives at the evaluator: candidates, which get a verdict, and samples, of which one in five is evidence."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog
from prometheus_client import Counter, Histogram

from reefcommon import topics
from reefcommon.errors import Transient
from reefcommon.evaluation import is_held_out
from reefcommon.events import (
    CandidateEvaluated,
    CandidateProposed,
    Evaluation,
    Release,
    SampleReady,
)
from reefcommon.ids import digest
from reefcommon.recipe import EvaluationPlan
from reefcommon.releases import ReleaseHeads
from reefkit.bus import EventPublisher
from reefkit.telemetry import current_traceparent
from services.evaluator.domain.policies import Rule, Ruling, rule
from services.evaluator.domain.replay import HeldOut, advantages, held_out, lacking
from services.evaluator.episodes import Episodes, Evidence, Sampling
from services.evaluator.plans import Plans
from services.evaluator.trial import Bench, DoesNotServe

log = structlog.get_logger()

VERDICTS = Counter("reef_verdicts_total", "verdicts on candidates", ["scenario", "verdict"])
DURATION = Histogram(
    "reef_evaluation_seconds",
    "time from a candidate to its verdict",
    buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300),
)


class EvidenceStore(Protocol):
    """Held-out samples, and candidates that wait for them. Raises Unavailable where it does not answer."""

    async def add(self, scenario: str, sample: HeldOut, at_s: float) -> None:
        """Keep a held-out sample; a repeat has no further effect."""

    async def samples(self, scenario: str) -> list[HeldOut]:
        """The newest held-out samples of a scenario."""

    async def wait(self, candidate: CandidateProposed) -> None:
        """Keep a candidate until there is evidence."""

    async def waiting(self) -> list[CandidateProposed]:
        """Every candidate that waits, the newest first."""

    async def done(self, candidate: CandidateProposed) -> None:
        """This candidate has its verdict."""


@dataclass(frozen=True, slots=True)
class Waits:
    """A candidate that waits for evidence, and how much of it there is and is needed."""

    scenario: str
    candidate_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Handlers:
    """The arrivals. A verdict may be given twice: its id is that of the candidate and the head, and the publisher takes it once."""

    plans: Plans
    heads: ReleaseHeads
    bench: Bench
    episodes: Episodes
    evidence: EvidenceStore
    events: EventPublisher
    now: Callable[[], datetime]

    async def on_sample(self, event: SampleReady) -> None:
        """One scored sample in five is kept apart as evidence."""
        sample = held_out(event)
        if sample is not None and is_held_out(event.event_id):
            await self.evidence.add(event.scenario, sample, event.recorded_at.timestamp())

    async def on_candidate(self, event: CandidateProposed) -> None:
        """A candidate: judge it, or let it wait until there is something to judge it by."""
        reason = await self.judged(event)
        if reason:
            await self.evidence.wait(event)
            log.info(
                "candidate_waits", scenario=event.scenario, candidate=event.event_id, reason=reason
            )

    async def look_again(self) -> list[Waits]:
        """Judge the candidates that waited and need not any more. Returns those that go on waiting, each with what it lacks."""
        left = []
        for candidate in await self.evidence.waiting():
            if reason := await self.judged(candidate):
                left.append(Waits(candidate.scenario, candidate.event_id, reason))
            else:
                await self.evidence.done(candidate)
        return left

    async def judged(self, candidate: CandidateProposed) -> str:
        """Give the verdict. Returns why there is none yet, empty where there is one."""
        head = await self.heads.head(candidate.scenario)
        if head is None:
            raise Transient(
                f"scenario {candidate.scenario!r} has no head: create it by POST /reef/scenarios, or name it in serve.yaml"
            )
        started = time.perf_counter()
        chosen, law = self.plans.for_candidate(candidate)
        samples: list[HeldOut] = []
        if (
            candidate.base_release_id == head.release_id
            and chosen.method == "replay"
            and law.policy != "always"
        ):
            samples = await self.evidence.samples(candidate.scenario)
            reason = lacking(samples) if candidate.kind == "lora" else ""
            if reason:
                return reason
        evaluation = await self._evaluate(candidate, head, chosen, law, samples)
        duration_s = time.perf_counter() - started
        DURATION.observe(duration_s)
        await self._announce(candidate, evaluation.model_copy(update={"duration_s": duration_s}))
        return ""

    async def _evaluate(
        self,
        candidate: CandidateProposed,
        head: Release,
        chosen: EvaluationPlan,
        law: Rule,
        samples: list[HeldOut],
    ) -> Evaluation:
        if candidate.base_release_id != head.release_id:
            await self.bench.forget(candidate)
            stale = f"stale_base: made from {candidate.base_release_id}, but {head.release_id} is the head"
            return _evaluation(Ruling("reject", stale), law, head, Evidence(()))
        try:
            evidence = await self._evidence(candidate, head, chosen, law, samples)
        except DoesNotServe as error:
            return _evaluation(
                Ruling("evaluation_failed", f"does not serve: {error}"), law, head, Evidence(())
            )
        if evidence.failures:
            now = await self.heads.head(candidate.scenario)
            if now is not None and now.release_id != head.release_id:
                stale = f"stale_base: {now.release_id} became the head meanwhile"
                return _evaluation(Ruling("reject", stale), law, head, evidence)
            words = f"{len(evidence.failures)} episodes failed; first: {evidence.failures[0]}"
            return _evaluation(Ruling("evaluation_failed", words), law, head, evidence)
        if law.policy == "always" and not evidence.tasks:
            found = (
                "the content is whole, nothing was tried"
                if candidate.kind == "checkpoint"
                else "it loads and answers"
            )
            return _evaluation(
                Ruling("select", f"always: asked for by name; {found}; nothing was compared"),
                law,
                head,
                evidence,
            )
        return _evaluation(rule(evidence.tasks, law), law, head, evidence)

    async def _evidence(
        self,
        candidate: CandidateProposed,
        head: Release,
        chosen: EvaluationPlan,
        law: Rule,
        samples: list[HeldOut],
    ) -> Evidence:
        if candidate.kind == "checkpoint" and law.policy == "always":
            await self.bench.check(candidate)
            return Evidence(())
        if candidate.kind not in ("lora", "harness"):
            hint = (
                ": it would replace the head there; the policy always, asked for by name, takes it unseen"
                * (candidate.kind == "checkpoint")
            )
            raise DoesNotServe(f"kind {candidate.kind} cannot be tried on a serving node{hint}")
        section, verifier = self.plans.config.evaluation, self.plans.verifier
        async with self.bench.trial(candidate, head) as (node, sides):
            await self.bench.probe(node, sides[0])
            if (
                self.plans.tasks
                and verifier is not None
                and (chosen.method == "tasks" or candidate.kind == "harness")
            ):
                sampling = Sampling(
                    section.samples_per_task, section.max_tokens, section.temperature
                )
                return await self.episodes.compare(
                    node, sides, self.plans.tasks, verifier, sampling, candidate.event_id
                )
            if law.policy == "always":
                return Evidence(())
            if chosen.method == "tasks" or candidate.kind == "harness":
                raise DoesNotServe(
                    "there are no held-out tasks to compare on: name them as evaluation.tasks and evaluation.score"
                )
            return await self.episodes.replay(
                node, (sides[0].model, sides[1].model), advantages(samples)
            )

    async def _announce(self, candidate: CandidateProposed, evaluation: Evaluation) -> None:
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
            reason=evaluation.reason,
            candidate_score=evaluation.candidate_score,
            head_score=evaluation.head_score,
        )


def _evaluation(ruling: Ruling, law: Rule, head: Release, evidence: Evidence) -> Evaluation:
    return Evaluation(
        verdict=ruling.verdict,
        policy=law.policy,
        reason=ruling.reason,
        candidate_score=ruling.candidate_score,
        head_score=ruling.head_score,
        head_release_id=head.release_id,
        wins=ruling.wins,
        losses=ruling.losses,
        ties=ruling.ties,
        p_value=ruling.p_value,
        tasks=evidence.tasks,
        failed_episodes=len(evidence.failures),
    )
