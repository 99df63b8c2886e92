"""The comparison of a candidate with the head: a trial of both, and the rule that decides."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from reefcommon.errors import Transient
from reefcommon.evaluator import Evaluator, implements
from reefcommon.events import CandidateProposed, Evaluation, Kind, Release
from reefcommon.harness.admission import CHAT
from reefcommon.kinds import KINDS
from reefcommon.releases import ReleaseHeads, may_be_compared
from services.evaluator.agent_episodes import AgentEpisodes
from services.evaluator.bench import Bench, DoesNotServe
from services.evaluator.domain.policies import TEST, Rule, Ruling, decide
from services.evaluator.domain.replay import HeldOut, lacking
from services.evaluator.episodes import Episodes, Evidence, Scores
from services.evaluator.plans import Plan, Plans
from services.evaluator.promotions import PromotedTasks
from services.evaluator.solutions import compare_solution


class EvidenceStore(Scores, PromotedTasks, Protocol):
    """Samples, their scores, and waiting candidates. Raises Unavailable."""

    async def add(self, scenario: str, sample: HeldOut, at_s: float) -> None: ...

    async def samples(self, scenario: str) -> list[HeldOut]: ...

    async def wait(self, candidate: CandidateProposed) -> None: ...

    async def waiting(self, scenario: str) -> list[CandidateProposed]: ...

    async def waiting_scenarios(self) -> list[str]: ...

    async def compared(self, candidate: CandidateProposed, evaluation: Evaluation) -> None:
        """Count a comparison with its head. May be repeated."""

    async def others_compared(self, candidate: CandidateProposed, head: Release) -> int:
        """Return how many other candidates were compared with this head."""

    async def done(self, candidate: CandidateProposed) -> None: ...

    async def restored(self) -> bool: ...

    async def set_restored(self) -> None: ...


NOT_RUN = Evidence(())
PAIRED: frozenset[Kind] = frozenset({"lora", "harness"})


class NodeLost(Transient):
    """The serving node went away in a trial."""


@dataclass(frozen=True, slots=True)
class Comparer:
    """Compares candidates with their heads. Its only effect is that scores are kept."""

    plans: Plans
    heads: ReleaseHeads
    bench: Bench
    episodes: Episodes
    evidence: EvidenceStore
    agents: AgentEpisodes | None = None
    joint_wait_s: float = 120.0
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def partner(
        self, candidate: CandidateProposed, waiting: Sequence[CandidateProposed]
    ) -> CandidateProposed | str | None:
        """Return the candidate to compare with this one, the reason to wait for it, or None.

        Raises Unavailable.
        """
        if candidate.kind not in PAIRED or not await self._joins(candidate):
            return None
        for one in waiting:
            pair = {candidate.kind, one.kind} == PAIRED
            if pair and one.scenario == candidate.scenario and await self._joins(one):
                return one
        other = next(iter(PAIRED - {candidate.kind}))
        waited_s = (self.now() - candidate.at).total_seconds()
        alone = waited_s > self.joint_wait_s
        return None if alone else f"joint: waits for a candidate of kind {other}"

    async def _joins(self, candidate: CandidateProposed) -> bool:
        plan = await asyncio.to_thread(self.plans.plan, candidate)
        head = await self.heads.head(candidate.scenario)
        return plan.chosen.joint and head is not None and await self._fits(candidate, head, plan)

    async def compare(
        self, candidate: CandidateProposed, partner: CandidateProposed | None = None
    ) -> Evaluation | str:
        """Return the evaluation, or the reason why the candidate has to wait.

        `partner`: a harness that is compared together with it.

        Raises:
            Transient: the scenario does not exist.
            NodeLost: the node of the trial does not answer any more.
            Unavailable: no node answers, or a store does not.
        """
        head = await self.heads.head(candidate.scenario)
        if head is None:
            remedy = "create it by POST /reef/scenarios, or name it in serve.yaml"
            raise Transient(f"scenario {candidate.scenario!r} has no head: {remedy}")
        # In a thread: a recipe may load its tasks when they are first asked for.
        plan = await asyncio.to_thread(self.plans.plan, candidate)
        plan = await self.with_promoted(partner or candidate, plan)
        looks = await self.evidence.others_compared(candidate, head)
        rule = replace(plan.rule, look=1 + looks)
        if not await self._fits(candidate, head, plan):
            await self.bench.forget(candidate)
            base = candidate.base_release_id
            stale = f"stale_base: made from {base}, but {head.release_id} is the head"
            return _evaluation(Ruling("reject", stale), rule, head)
        if (comparison := self._without_trial(candidate, head, plan, rule)) is not None:
            return await comparison
        samples: list[HeldOut] = []
        if rule.policy != "always":
            samples = await self.evidence.samples(candidate.scenario)
            if reason := self._lacking(partner or candidate, plan, rule, samples):
                return reason
        try:
            evidence = await self._try(candidate, head, plan, samples, partner)
        except DoesNotServe as error:
            return _evaluation(Ruling("evaluation_failed", f"does not serve: {error}"), rule, head)
        if evidence.failures:
            now = await self.heads.head(candidate.scenario)
            if now is not None and now.release_id != head.release_id:
                # The old head was unloaded under the trial: its failures say nothing.
                return await self.compare(candidate, partner)
            count, first = len(evidence.failures), evidence.failures[0]
            if evidence.node_lost:
                raise NodeLost(f"the node went away in the trial: {first}")
            failed = Ruling("evaluation_failed", f"{count} episodes failed; first: {first}")
            return _evaluation(failed, rule, head, evidence)
        if rule.policy == "always" and not evidence.tasks:
            whole = _untried(candidate, plan)
            seen = "the content is whole, it was not tried" if whole else "it loads and answers"
            unseen = f"always: asked for by name; {seen}; nothing was compared"
            return _evaluation(Ruling("select", unseen), rule, head, evidence)
        return _evaluation(decide(evidence.tasks, rule), rule, head, evidence)

    async def lacking(self, scenario: str) -> str:
        """Return why the held-out samples of a scenario do not suffice; "" if they do, or if none
        are needed. Raises Unavailable.
        """
        needed = self.plans.held_out.get(scenario, 0)
        return lacking(await self.evidence.samples(scenario), needed) if needed else ""

    async def with_promoted(self, candidate: CandidateProposed, plan: Plan) -> Plan:
        """Return the plan of a harness with the promoted tasks of its scenario."""
        wanted = plan.sampling.promote_failures and plan.tasks and plan.runner == "chat"
        if candidate.kind != "harness" or not wanted:
            return plan
        more = await self.evidence.promoted(candidate.scenario)
        return replace(plan, tasks=(*plan.tasks, *(one.task for one in more)))

    async def compare_tasks(
        self,
        candidate: CandidateProposed,
        head: Release,
        plan: Plan,
        partner: CandidateProposed | None = None,
    ) -> Evidence:
        """Let both sides do the tasks of the plan. Raises as `compare`, and DoesNotServe."""
        agents = self.agents if plan.runner == "agent" else None
        assert agents is not None or plan.runner != "agent", "it is built if a plan names it"
        adapter = agents.adapter if agents is not None else CHAT
        async with self.bench.trial(candidate, head, adapter, partner) as (node, sides):
            await self.bench.probe(node, sides[0])
            if agents is not None:
                both = (plan.tasks, plan.verifier, candidate, head)
                return await agents.compare(node, sides, *both)
            given = (plan.tasks, plan.verifier, plan.sampling, candidate.event_id)
            return await self.episodes.compare(node, sides, *given)

    def _without_trial(
        self, candidate: CandidateProposed, head: Release, plan: Plan, rule: Rule
    ) -> Awaitable[Evaluation] | None:
        if candidate.kind == "routing":
            return self._route(candidate, head, rule)
        if candidate.kind == "solution" and not _untried(candidate, plan):
            return compare_solution(self.bench, plan, candidate, head)
        return None

    async def _route(self, candidate: CandidateProposed, head: Release, rule: Rule) -> Evaluation:
        # The releases that it names were compared; how sessions are shared is no claim to test.
        try:
            await self.bench.check(candidate)
        except DoesNotServe as error:
            return _evaluation(Ruling("evaluation_failed", str(error)), rule, head)
        shares = "always: a routing policy shares sessions among releases; nothing was compared"
        return _evaluation(Ruling("select", shares), replace(rule, policy="always"), head)

    async def _fits(self, candidate: CandidateProposed, head: Release, plan: Plan) -> bool:
        if candidate.base_release_id == head.release_id:
            return True
        base = await self.heads.release(candidate.scenario, candidate.base_release_id)
        return may_be_compared(plan.chosen.on_stale, base, head, candidate.kind)

    def _by_tasks(self, candidate: CandidateProposed, plan: Plan) -> bool:
        # A harness changes prompts, so that recorded tokens say nothing about it.
        return plan.chosen.method == "tasks" or candidate.kind == "harness"

    def _lacking(
        self, candidate: CandidateProposed, plan: Plan, rule: Rule, samples: list[HeldOut]
    ) -> str:
        if self._by_tasks(candidate, plan):
            if not 0 < len(plan.tasks) < rule.min_pairs:
                return ""
            remedy = "add tasks to evaluation.tasks, or set evaluation.policy: always"
            return f"{len(plan.tasks)} held-out tasks, {rule.min_pairs} are needed: {remedy}"
        return lacking(samples, rule.min_pairs) if candidate.kind == "lora" else ""

    async def _try(
        self,
        candidate: CandidateProposed,
        head: Release,
        plan: Plan,
        samples: list[HeldOut],
        partner: CandidateProposed | None,
    ) -> Evidence:
        always, tried = plan.rule.policy == "always", KINDS[candidate.kind].tried
        if _untried(candidate, plan):
            await self.bench.check(candidate)
            return NOT_RUN
        if tried not in ("adapter", "harness"):
            untried = f"kind {candidate.kind} cannot be tried on a serving node"
            if candidate.kind == "solution":
                untried += ": its recipe judges it, or policy always takes it"
            if candidate.kind == "checkpoint":
                untried += ": it would replace the head there; policy always takes it untried"
            raise DoesNotServe(untried)
        by_tasks = self._by_tasks(partner or candidate, plan)
        if by_tasks and plan.tasks:
            return await self.compare_tasks(candidate, head, plan, partner)
        async with self.bench.trial(candidate, head, CHAT, partner) as (node, sides):
            await self.bench.probe(node, sides[0])
            if always:
                return NOT_RUN
            if by_tasks:
                remedy = "name them as evaluation.tasks and evaluation.score, or in the recipe"
                raise DoesNotServe(f"there are no held-out tasks to compare on: {remedy}")
            held_out = (samples, self.evidence, candidate.scenario)
            return await self.episodes.replay(node, sides, *held_out)


def _untried(candidate: CandidateProposed, plan: Plan) -> bool:
    # `always` takes what no node can try and no verifier measures.
    judged = implements(plan.chosen.evaluator or Evaluator(), "judge_files")
    whole = KINDS[candidate.kind].tried == "whole"
    return plan.rule.policy == "always" and whole and not (candidate.kind == "solution" and judged)


def _evaluation(
    ruling: Ruling, rule: Rule, head: Release, evidence: Evidence = NOT_RUN
) -> Evaluation:
    worth: dict[str, Any] = {"strength": "none"}
    if (found := ruling.comparison) is not None:
        worth = {**asdict(found), "pairs": found.pairs, "strength": found.strength, "test": TEST}
        del worth["mean"]
    return Evaluation(
        verdict=ruling.verdict,
        policy=rule.policy,
        reason=ruling.reason,
        head_release_id=head.release_id,
        tasks=evidence.tasks,
        failed_episodes=len(evidence.failures),
        **worth,
    )


def failed(candidate: CandidateProposed, reason: str) -> Evaluation:
    return Evaluation(
        verdict="evaluation_failed",
        policy="always",
        reason=reason,
        head_release_id=candidate.base_release_id,
        strength="none",
    )
