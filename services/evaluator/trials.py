"""Waiting candidates, tried in the background: scenarios side by side, each in turn."""

#     candidate -> kept in the evidence store -> offset committed
#               -> trial of its scenario -> verdict published -> forgotten
#
# If the store has lost its contents, they and the verdicts are read from the log again; a single
# candidate that it has lost is found by a later reading (`find_lost`). A candidate that waits is in
# `/status` from its arrival on, with the reason.

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import structlog
from prometheus_client import Gauge, Histogram

from reefcommon.errors import ReefError, Transient, Unavailable
from reefcommon.events import CandidateEvaluated, CandidateProposed, Evaluation
from reefkit.background import cancel
from reefkit.redis_lease import RedisLease
from services.evaluator.comparer import Comparer, EvidenceStore, NodeLost, failed
from services.evaluator.rechecks import Rechecks

log = structlog.get_logger()

DURATION = Histogram(
    "reef_evaluation_seconds",
    "time of a comparison, without the wait before it",
    buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300),
)
WAIT_S = Gauge(
    "reef_candidate_wait_seconds",
    "age of the oldest candidate without a verdict, in trial or not; 0: there is none",
    ["scenario"],
)
MAX_ATTEMPTS = 6
# A candidate may be what ends the node.
LOST_NODES = 2
ON_TRIAL, NEXT = "its trial is under way", "comes after another candidate"
LATER = "trials cannot be held now, and are tried again: {}"
# A candidate is in the log before it is in the store; a verdict likewise.
LOST_AFTER = timedelta(minutes=2)


class CandidateLog(Protocol):
    async def read(self) -> tuple[list[CandidateProposed], list[CandidateEvaluated]]:
        """Return the candidates without a verdict, and all verdicts."""


@dataclass(frozen=True, slots=True)
class WaitingCandidate:
    scenario: str
    candidate_id: str
    reason: str
    since: datetime


@dataclass(slots=True)
class Trials:
    """Tries waiting candidates. `lease`: the right to try those of a scenario; `failing`: the
    bench's.

    A candidate that waits for longer than `long_wait_s` is logged once for each reason.
    """

    comparer: Comparer
    evidence: EvidenceStore
    candidates: CandidateLog
    lease: Callable[[str], RedisLease]
    publish: Callable[[CandidateProposed, Evaluation, CandidateProposed | None], Awaitable[None]]
    rechecks: Rechecks
    failing: dict[str, str]
    long_wait_s: float = 120.0
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _running: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _waiting: dict[str, dict[str, WaitingCandidate]] = field(default_factory=dict)
    _logged: dict[str, str] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)
    _lost: Counter[str] = field(default_factory=Counter)
    _lacking: dict[str, str] = field(default_factory=dict)

    async def add(self, candidate: CandidateProposed) -> None:
        """Keep a candidate and begin its trial. May be repeated."""
        await self.restore()
        await self.evidence.wait(candidate)
        self._show(candidate, NEXT)
        log.info("candidate_taken", scenario=candidate.scenario, candidate=candidate.event_id)
        self._begin(candidate.scenario)

    async def count(self, scenario: str) -> None:
        """Note how many held-out samples a scenario has, until they suffice. May be repeated."""
        if self._lacking.get(scenario) != "":
            self._lacking[scenario] = await self.comparer.lacking(scenario)

    async def round(self) -> list[WaitingCandidate]:
        """Begin the trials of waiting candidates. Returns all candidates without a verdict.

        Raises:
            Unavailable: a trial failed because a node or a store does not answer.
        """
        await self.restore()
        for scenario in self.comparer.plans.held_out.keys() - self._lacking.keys():
            await self.count(scenario)
        due = await self.rechecks.all_due()
        for scenario in dict.fromkeys((*await self.evidence.waiting_scenarios(), *due)):
            self._begin(scenario)
        rows = self.waiting()
        self._tell(rows)
        if self.failing:
            raise Unavailable("; ".join(sorted(set(self.failing.values()))))
        return rows

    def waiting(self) -> list[WaitingCandidate]:
        """Return the candidates without a verdict that this process knows, oldest first."""
        rows = [
            replace(row, reason=LATER.format(why))
            if why and row.reason in (ON_TRIAL, NEXT)
            else row
            for why, found in ((self.failing.get(name), f) for name, f in self._waiting.items())
            for row in found.values()
        ]
        return sorted(rows, key=lambda row: row.since)

    def facts(self) -> dict[str, Callable[[], Any]]:
        """Return the facts of `/status`."""
        return {
            "waiting_candidates": lambda: len(self.waiting()),
            "waiting_for": lambda: [asdict(row) for row in self.waiting()],
            "held_out": lambda: {name: why for name, why in self._lacking.items() if why},
        }

    async def find_lost(self) -> int:
        """Keep candidates again that only the log has; return their number. Raises Unavailable."""
        # A Redis that fails over may lose acknowledged writes, and the trainer would wait for ever.
        kept: set[str] = set()  # before the log is read: they may get a verdict meanwhile
        for scenario in await self.evidence.waiting_scenarios():
            kept |= {candidate.event_id for candidate in await self.evidence.waiting(scenario)}
        candidates, _ = await self.candidates.read()
        before = self.now() - LOST_AFTER
        lost = [one for one in candidates if one.at < before and one.event_id not in kept]
        for candidate in lost:
            log.warning("candidate_was_lost", scenario=candidate.scenario, id=candidate.event_id)
            await self.add(candidate)
        return len(lost)

    async def restore(self) -> None:
        """If the store lost its contents, read candidates and verdicts from the log."""
        if await self.evidence.restored():
            return
        candidates, verdicts = await self.candidates.read()
        for candidate in candidates:
            await self.evidence.wait(candidate)
        for verdict in verdicts:
            await self.evidence.compared(verdict.candidate, verdict.evaluation)
        await self.evidence.set_restored()

    async def settled(self) -> None:
        while self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def close(self) -> None:
        await cancel(self._running.values())

    def _begin(self, scenario: str) -> None:
        if scenario not in self._running:
            task = asyncio.create_task(self._run(scenario), name=f"trials of {scenario}")
            self._running[scenario] = task
            task.add_done_callback(lambda _: self._running.pop(scenario, None))

    async def _run(self, scenario: str) -> None:
        try:
            lease = self.lease(scenario)
            if await lease.taken():
                self._waiting[scenario] = {}  # another process tries them, and shows them
            else:
                async with lease.during(wait_s=0):
                    await self._compare_all(scenario)
                    await self.rechecks.run(scenario)
            self.failing.pop(scenario, None)
        except Exception as error:  # `round` reports it; other scenarios go on
            reason = str(error) or repr(error)
            if self.failing.get(scenario) != reason:
                ours = not isinstance(error, ReefError)
                log.warning("trials_interrupted", scenario=scenario, reason=reason, exc_info=ours)
            self.failing[scenario] = reason

    async def _compare_all(self, scenario: str) -> None:
        # The newest first: it has learned from more samples. Those that arrive meanwhile count too.
        lacking: dict[str, str] = {}
        while True:
            candidates = await self.evidence.waiting(scenario)
            self._waiting[scenario] = {}
            for candidate in candidates:
                self._show(candidate, lacking.get(candidate.event_id, NEXT))
            left = [one for one in candidates if one.event_id not in lacking]
            if not left:
                break
            partner = await self.comparer.partner(left[0], candidates)
            if isinstance(partner, str):
                lacking[left[0].event_id] = partner
                continue
            pair = [left[0]] if partner is None else _weights_first(left[0], partner)
            for each in pair:
                self._show(each, ON_TRIAL)
            if reason := await self._verdict(*pair):
                lacking |= {each.event_id: reason for each in pair}
            else:
                for each in reversed(pair):
                    await self.evidence.done(each)

    def _show(self, candidate: CandidateProposed, reason: str) -> None:
        row = WaitingCandidate(candidate.scenario, candidate.event_id, reason, candidate.at)
        self._waiting.setdefault(candidate.scenario, {})[row.candidate_id] = row

    def _tell(self, rows: list[WaitingCandidate]) -> None:
        now = self.now()
        for scenario in self._waiting:
            since = min((row.since for row in rows if row.scenario == scenario), default=now)
            WAIT_S.labels(scenario).set(max((now - since).total_seconds(), 0.0))
        long = [row for row in rows if (now - row.since).total_seconds() > self.long_wait_s]
        for row in long:
            if self._logged.get(row.candidate_id) != row.reason:
                about = {"scenario": row.scenario, "candidate": row.candidate_id}
                log.warning("candidate_waits", since=str(row.since), reason=row.reason, **about)
        self._logged = {row.candidate_id: row.reason for row in long}

    async def _verdict(
        self, candidate: CandidateProposed, partner: CandidateProposed | None = None
    ) -> str:
        """Returns why there is no verdict yet; "" if there is."""
        started = time.perf_counter()
        try:
            evaluation = await self.comparer.compare(candidate, partner)
        except Unavailable:
            raise
        except NodeLost as error:
            self._lost[candidate.event_id] += 1
            if self._lost[candidate.event_id] < LOST_NODES:
                return str(error)
            evaluation = failed(candidate, str(error))
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
        evaluation = evaluation.model_copy(update={"duration_s": duration_s})
        await self.publish(candidate, evaluation, partner)
        for each in filter(None, (candidate, partner)):
            await self.evidence.compared(each, evaluation)
        return ""


def _weights_first(one: CandidateProposed, other: CandidateProposed) -> list[CandidateProposed]:
    return [other, one] if one.kind == "harness" else [one, other]
