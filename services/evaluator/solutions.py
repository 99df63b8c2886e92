"""Solutions: the verifier's number of a candidate's files against that of the head's."""

# No sample is drawn, so there is nothing to test: of two numbers the strictly greater wins. How
# much that is worth depends on the verifier. If equal files always get the same number, the
# comparison has no error, and a win is strong evidence. If not, a single pair is none.

from dataclasses import dataclass
from typing import Literal

from reefcommon.evaluator import Evaluator, Scored, implements
from reefcommon.events import CandidateProposed, Evaluation, Release, Verdict
from reefkit.verifier import VerifierFailed
from services.evaluator.bench import Bench, DoesNotServe
from services.evaluator.episodes import Episode, task_result
from services.evaluator.plans import Plan

EXACT = "one exact number against another"
INEXACT = "one number against another"
TASK = "solution"


@dataclass(frozen=True, slots=True)
class _Ruling:
    verdict: Verdict
    reason: str
    ours: Scored | None = None
    heads: Scored | None = None


async def compare_solution(
    bench: Bench, plan: Plan, candidate: CandidateProposed, head: Release
) -> Evaluation:
    """Compare a solution with the head's. Raises Unavailable if the store does not answer."""
    evaluator = plan.chosen.evaluator
    if evaluator is None or not implements(evaluator, "judge_files"):
        by = candidate.lineage.recipe or "the producer"
        remedy = "an evaluator with judge_files, by the recipe's evaluation()"
        ruling = _Ruling("evaluation_failed", f"{by} does not say how to judge files: {remedy}")
        return _evaluation(ruling, head, exact=False)
    try:
        async with bench.solutions(candidate, head) as (ours, heads):
            number = await plan.verifier.files(ours)
            if evaluator.exact:
                again = await plan.verifier.files(ours)
                if again.number != number.number:
                    numbers = f"{number.number!r} and {again.number!r}"
                    raise VerifierFailed(f"the verifier is called exact, and gave {numbers}")
            theirs = await plan.verifier.files(heads) if heads is not None else None
    except (DoesNotServe, VerifierFailed) as error:
        return _evaluation(_Ruling("evaluation_failed", str(error)), head, exact=evaluator.exact)
    ruling = _decide(evaluator, number, theirs, plan.rule.min_effect)
    return _evaluation(ruling, head, exact=evaluator.exact)


def _decide(evaluator: Evaluator, ours: Scored, heads: Scored | None, margin: float) -> _Ruling:
    words = f"{ours.number!r}"
    if ours.number <= evaluator.least:
        return _Ruling("reject", f"{words}: needs more than {evaluator.least:g}", ours, heads)
    if heads is None:
        first = "the first solution, there is none to compare with"
        return _Ruling("select", f"{words}: {first}", ours)
    difference = ours.number - heads.number
    above = f" by more than {margin:g}" if margin else ""
    reason = f"{words} against {heads.number!r} ({difference:+.4g}); needs to be greater{above}"
    return _Ruling("select" if difference > margin else "reject", reason, ours, heads)


def _evaluation(ruling: _Ruling, head: Release, *, exact: bool) -> Evaluation:
    ours, heads = ruling.ours, ruling.heads
    strength: Literal["strong", "none"] = "none"
    pair = ours is not None and heads is not None
    difference = ours.number - heads.number if ours is not None and heads is not None else 0.0
    if exact and ruling.verdict == "select" and pair:
        strength = "strong"
    result = task_result(TASK, _side(ours), _side(heads))
    return Evaluation(
        verdict=ruling.verdict,
        policy="strictly_better",
        reason=ruling.reason,
        candidate_score=result.candidate,
        head_score=result.head,
        head_release_id=head.release_id,
        wins=int(difference > 0),
        losses=int(difference < 0),
        ties=int(pair and difference == 0),
        pairs=int(pair),
        test=(EXACT if exact else INEXACT) if pair else "",
        confidence_low=difference if exact and pair else None,
        strength=strength,
        tasks=(result,) if ours else (),
    )


def _side(scored: Scored | None) -> Episode:
    return Episode(scored.number, words=scored.words) if scored is not None else Episode(None)
