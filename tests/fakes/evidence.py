"""EvidenceStore and candidate log of the evaluator, in memory."""

from collections import defaultdict

from reefcommon.events import CandidateEvaluated, CandidateProposed, Evaluation, Release
from services.evaluator.domain.promotion import PromotedTask
from services.evaluator.domain.replay import HeldOut


class MemoryEvidence:
    """Held-out samples, scores and waiting candidates by scenario."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, HeldOut]] = defaultdict(dict)
        self.known: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        self.candidates: dict[str, dict[str, CandidateProposed]] = defaultdict(dict)
        self.compared_by: dict[str, set[str]] = defaultdict(set)
        self.is_restored = False
        self.promoted_by: dict[str, dict[str, PromotedTask]] = defaultdict(dict)
        self.rechecked: dict[str, int] = {}

    async def add(self, scenario: str, sample: HeldOut, at_s: float) -> None:
        self.held[scenario][sample.sample_id] = sample

    async def samples(self, scenario: str) -> list[HeldOut]:
        return [sample for _, sample in sorted(self.held[scenario].items())]

    async def scores(self, scenario: str, weights: str) -> dict[str, float]:
        return dict(self.known[scenario, weights])

    async def put_score(self, scenario: str, weights: str, sample_id: str, score: float) -> None:
        self.known[scenario, weights][sample_id] = score

    async def wait(self, candidate: CandidateProposed) -> None:
        self.candidates[candidate.scenario][candidate.event_id] = candidate

    async def waiting(self, scenario: str) -> list[CandidateProposed]:
        found = self.candidates[scenario].values()
        return sorted(found, key=lambda candidate: candidate.at, reverse=True)

    async def waiting_scenarios(self) -> list[str]:
        return sorted(scenario for scenario, found in self.candidates.items() if found)

    async def compared(self, candidate: CandidateProposed, evaluation: Evaluation) -> None:
        if evaluation.p_value is not None:
            self.compared_by[evaluation.head_release_id].add(candidate.event_id)

    async def others_compared(self, candidate: CandidateProposed, head: Release) -> int:
        return len(self.compared_by[head.release_id] - {candidate.event_id})

    async def promote(
        self, scenario: str, task: PromotedTask, at_most: int, per_client: int
    ) -> bool:
        kept = self.promoted_by[scenario]
        own = [one for one in kept.values() if one.client == task.client]
        if task.id in kept or len(kept) >= at_most or len(own) >= per_client:
            return False
        kept[task.id] = task
        return True

    async def promoted(self, scenario: str) -> list[PromotedTask]:
        return sorted(self.promoted_by[scenario].values(), key=lambda task: task.id)

    async def compared_with(self, scenario: str, head_id: str) -> int:
        return len(self.compared_by[head_id])

    async def rechecks(self, scenario: str, head_id: str) -> int:
        return self.rechecked.get(head_id, 0)

    async def set_rechecks(self, scenario: str, head_id: str, count: int) -> None:
        self.rechecked[head_id] = count

    async def done(self, candidate: CandidateProposed) -> None:
        self.candidates[candidate.scenario].pop(candidate.event_id, None)

    async def restored(self) -> bool:
        return self.is_restored

    async def set_restored(self) -> None:
        self.is_restored = True


class MemoryCandidateLog:
    """A log whose candidates all have a verdict."""

    async def read(self) -> tuple[list[CandidateProposed], list[CandidateEvaluated]]:
        return [], []
