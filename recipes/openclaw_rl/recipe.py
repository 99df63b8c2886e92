"""OpenClaw-RL: what follows an answer is the signal; no report is needed."""

#     turn      an answer, and the next state: the user's next words, or the results of its tools
#     judge     m votes on the answer: 1, -1, 0. Plurality; a tie, or no valid vote, is 0
#               m looks for a hint: what would the next state have told the answer? Longest wins
#
#     hint | vote      row of the dispatch table             reward   teacher reads
#     yes  | 1, -1     both terms                            vote     the request with the hint
#     yes  | 0         distillation alone                    0        the request with the hint
#     no   | 1, -1     reinforcement alone (or an anchor)    vote     - (anchor: the request)
#     no   | 0         never trained                         -        -
#
#     r_t    = exp(log pi(a_t) - log pi_rollout(a_t))        the engine's own log-probabilities
#     L_rl   = mean - min(r_t A, clip(r_t, 1 - 0.2, 1 + 0.28) A),  A = vote [- batch mean]
#     L_opd  = mean JSD(pi(. | request, a_<t), base(. | request + hint, a_<t))
#              over the teacher's top 50 tokens and a tail; or `topk_select`, see learner.py
#     L      = rl_weight L_rl + opd_weight L_opd
#
# signal      the next state, read by a judge; side calls and last turns never train
# target      a LoRA adapter; the teacher is the frozen base below it
# staleness   0 <= lag <= max_staleness is admitted; the ratio corrects the reinforcement
# refused     as SAO; turns in which the judge sees neither right nor wrong, nor a hint
# run         reef demo --recipe openclaw-rl
# expect      docs/methods.md
#
# `objective` switches a half off: `binary` asks for votes only, `opd` for hints only. The judge's
# prompts and the reading of its answers are in judge.py, the step in learner.py, the knobs in
# knobs.py.

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from recipes.openclaw_rl import judge
from recipes.openclaw_rl.knobs import Knobs
from recipes.policy_gradient.rollouts import admit, unfit
from reefcommon import recipe
from reefcommon.events import Signal, TurnFollowed, Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, EvaluationPlan, Learner, WeightRecipe
from reefcommon.recipe_context import Context, Model, ModelFailed


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn with its next state."""

    asked: tuple[dict[str, Any], ...]
    answer: dict[str, Any]
    following: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, unit: Unit) -> "Turn | None":
        """Read a unit; None if it has no next state, or no answer."""
        if not isinstance(unit, TurnFollowed) or unit.ended != "followed":
            return None
        said = [i for i, m in enumerate(unit.messages) if m.get("role") == "assistant"]
        if not unit.next_messages or not said:
            return None
        return cls(unit.messages[: said[-1]], unit.messages[said[-1]], unit.next_messages)


class OpenClawRLRecipe(WeightRecipe):
    name: ClassVar[str] = "openclaw_rl"
    summary: ClassVar[str] = (
        "a judge reads what followed each answer; its votes and its hints train a LoRA"
    )
    dimensions: ClassVar[Dimensions] = Dimensions(
        signal="the next state of each turn", evolves=("lora",)
    )
    shown: ClassVar[str] = (
        "SmolLM2's held-out share of the liked greeting, without a report, seeds 0, 1, 2, on a "
        "busy machine: 0.00 -> 0.39, 0.47, 0.33 after 146, 130, 160 requests (`reef demo --recipe "
        "openclaw-rl`), votes alone (`--arms binary`) 0.00 in each; on the tiny model 0.91, "
        "0.94, 0.91, votes 0.00"
    )
    knobs_type: ClassVar[type[recipe.Knobs]] = Knobs
    consumes = ("turn",)
    knobs: Knobs

    async def signal(self, unit: Unit, ctx: Context) -> Signal | None:
        knobs, turn = self.knobs, Turn.of(unit)
        if turn is None or unit.untrainable is not None:
            return None  # no judge is asked about a turn that can never train
        if unfit(unit, scored=False) is not None:
            return Signal(score=0.0)  # nor about this one; `decide` says why
        model, shown = ctx.models[knobs.judge], (turn.asked, turn.answer, turn.following)
        said: list[str | ModelFailed] = []
        hinted: list[str | ModelFailed] = []
        if knobs.objective != "opd":
            said = await self._ask(model, judge.evaluative(*shown), "vote")
        if knobs.objective != "binary":
            hinted = await self._ask(model, judge.directive(*shown), "hint")
        failures = [answer for answer in (*said, *hinted) if isinstance(answer, ModelFailed)]
        if len(failures) == len(said) + len(hinted):
            raise failures[0]  # it is away: the turn waits, or is tried again
        return dispatch(
            turn,
            [judge.vote_in(text) if isinstance(text, str) else None for text in said],
            judge.best_hint(judge.hint_in(text) for text in hinted if isinstance(text, str)),
            anchor=knobs.anchor and knobs.objective == "combine",
        )

    async def _ask(
        self, model: Model, question: list[Any], purpose: str
    ) -> list[str | ModelFailed]:
        """Return the judge's answers; a failure takes the place of an answer."""
        knobs = self.knobs
        # A request for each vote, told apart by its seed: a failed call is a failed vote.
        asked = (
            model.chat(
                question,
                purpose=purpose,
                temperature=knobs.judge_temperature,
                max_tokens=knobs.judge_max_tokens,
                seed=number,
            )
            for number in range(knobs.judge_votes)
        )
        found: list[str | ModelFailed] = []
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, ModelFailed):
                found.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome  # a spent budget is no vote: the turn waits
            else:
                # Cut off, it has not come to its last box, and may be quoting one.
                found.append("" if outcome[0].finish_reason == "length" else outcome[0].text)
        return found

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        # As SAO: the oldest `batch_size` turns that are fit and fresh; fewer wait.
        size = self.knobs.batch_size
        fit = admit(waiting, serving, self.knobs.max_staleness, self.knobs.score_range)
        return Decision(fit.batch[:size] if len(fit.batch) >= size else (), fit.refused)

    def proposes(self, step: int) -> bool:
        return step > 0 and step % self.knobs.candidate_every == 0

    def evaluation(self) -> EvaluationPlan:
        # Turns have no reported scores that a candidate could be compared by. An `evaluation:`
        # section with held-out tasks makes a gate.
        return EvaluationPlan(policy="always")

    def learner(self, model_path: Path) -> Learner:
        from recipes.openclaw_rl.learner import OpenClawRLLearner  # torch: in the step process only

        return OpenClawRLLearner(self.knobs, model_path)


def dispatch(
    turn: Turn, votes: Sequence[int | None], hint: str, *, anchor: bool = False
) -> Signal | None:
    """Return the signal of a turn by the dispatch table, or None if it says nothing."""
    vote = judge.plurality(votes)
    if not hint and not vote:
        return None
    teacher = judge.with_hint(turn.asked, hint) if hint else turn.asked if anchor else ()
    row = "hint and vote" if hint and vote else "hint" if hint else "vote"
    labels: dict[str, str | float] = {
        "row": row,
        "vote": float(vote),
        "votes": " ".join("-" if one is None else f"{one:+d}" for one in votes),
        "next_role": str(turn.following[-1].get("role", "")),
    }
    return Signal(score=float(vote), words=hint, teacher=teacher, labels=labels)
