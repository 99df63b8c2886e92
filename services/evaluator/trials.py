"""Waiting candidates, judged in the background: scenarios side by side, each in turn."""

#     candidate -> kept in the evidence store -> offset committed
#               -> trial of its scenario -> verdict published -> forgotten
#
# If the store has lost its contents, they and the verdicts are read from the log again.

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from prometheus_client import Histogram

from reefcommon.errors import ReefError, Transient, Unavailable
from reefcommon.events import CandidateEvaluated, CandidateProposed, Evaluation
from reefkit.redis_lease import RedisLease
from services.evaluator.judge import EvidenceStore, Judge, failed

log = structlog.get_logger()

DURATION = Histogram(
    "reef_evaluation_seconds",
    "time from a candidate to its verdict",
    buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300),
)
MAX_ATTEMPTS = 6


class CandidateLog(Protocol):
    async def read(self) -> tuple[list[CandidateProposed], list[CandidateEvaluated]]:
        """Return the candidates without a verdict, and all verdicts."""


@dataclass(frozen=True, slots=True)
class WaitingCandidate:
    scenario: str
    candidate_id: str
    reason: str


@dataclass(slots=True)
class Trials:
    """Judges waiting candidates. `lease`: the right to judge those of a scenario."""

    judge: Judge
    evidence: EvidenceStore
    candidates: CandidateLog
    lease: Callable[[str], RedisLease]
    publish: Callable[[CandidateProposed, Evaluation], Awaitable[None]]
    _running: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _waiting: dict[str, list[WaitingCandidate]] = field(default_factory=dict)
    _failing: dict[str, str] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)

    async def add(self, candidate: CandidateProposed) -> None:
        """Keep a candidate and begin its trial. May be repeated."""
        await self.restore()
        await self.evidence.wait(candidate)
        self._begin(candidate.scenario)

    async def round(self) -> list[WaitingCandidate]:
        """Begin the trials of waiting candidates. Returns those that lacked evidence last time.

        Raises:
            Unavailable: a trial failed because a node or a store does not answer.
        """
        await self.restore()
        for scenario in await self.evidence.waiting_scenarios():
            self._begin(scenario)
        if self._failing:
            raise Unavailable("; ".join(sorted(set(self._failing.values()))))
        return [candidate for found in self._waiting.values() for candidate in found]

    async def restore(self) -> None:
        """If the store lost its contents, read candidates and verdicts from the log."""
        if await self.evidence.restored():
            return
        candidates, verdicts = await self.candidates.read()
        for candidate in candidates:
            await self.evidence.wait(candidate)
        for verdict in verdicts:
            await self.evidence.judged(verdict.candidate, verdict.evaluation)
        await self.evidence.set_restored()

    async def settled(self) -> None:
        while self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        await self.settled()

    def _begin(self, scenario: str) -> None:
        if scenario not in self._running:
            task = asyncio.create_task(self._run(scenario), name=f"trials of {scenario}")
            self._running[scenario] = task
            task.add_done_callback(lambda _: self._running.pop(scenario, None))

    async def _run(self, scenario: str) -> None:
        try:
            lease = self.lease(scenario)
            if not await lease.taken():
                async with lease.during(wait_s=0):
                    await self._judge_all(scenario)
            self._failing.pop(scenario, None)
        except Exception as error:  # `round` reports it; other scenarios go on
            reason = str(error) or repr(error)
            if self._failing.get(scenario) != reason:
                ours = not isinstance(error, ReefError)
                log.warning("trials_interrupted", scenario=scenario, reason=reason, exc_info=ours)
            self._failing[scenario] = reason

    async def _judge_all(self, scenario: str) -> None:
        # The newest first: it has learned from more samples. Those that arrive meanwhile count too.
        lacking: dict[str, WaitingCandidate] = {}
        while True:
            candidates = await self.evidence.waiting(scenario)
            left = [one for one in candidates if one.event_id not in lacking]
            if not left:
                break
            if reason := await self._verdict(left[0]):
                one = WaitingCandidate(scenario, left[0].event_id, reason)
                lacking[one.candidate_id] = one
            else:
                await self.evidence.done(left[0])
        self._waiting[scenario] = list(lacking.values())

    async def _verdict(self, candidate: CandidateProposed) -> str:
        """Returns why there is no verdict yet; "" if there is."""
        started = time.perf_counter()
        try:
            evaluation = await self.judge.judge(candidate)
        except Unavailable:
            raise
        except Transient as error:
            return str(error)
        except Exception as error:  # a mistake of ours: after some tries, the trainer must hear
            log.exception("trial_failed", candidate=candidate.event_id)
            self._failures[candidate.event_id] += 1
            if self._failures[candidate.event_id] < MAX_ATTEMPTS:
                return f"{type(error).__name__}: {error}"
            evaluation = failed(candidate, f"the evaluator failed: {type(error).__name__}: {error}")
        if isinstance(evaluation, str):
            return evaluation
        duration_s = time.perf_counter() - started
        DURATION.observe(duration_s)
        await self.publish(candidate, evaluation.model_copy(update={"duration_s": duration_s}))
        await self.evidence.judged(candidate, evaluation)
        return ""
