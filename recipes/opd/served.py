"""OPD with a served teacher: a model of the `models:` section grades every sampled token."""

#     g_t = log p(y_t) - log t(y_t)             t from the endpoint's `prompt_logprobs`, asked once
#     L   = mean over units of mean over tokens of  g_t,  its gradient  g_t d log p(y_t)
#
# signal      the teacher's log-probabilities of the tokens: kept in the log, within the budget of
#             the model, and not asked again after a crash or in a replay
# target      a LoRA adapter on the served model
# teacher     an endpoint with the SAME tokens as the served model (vLLM, or a Reef engine); this
#             cannot be checked here. Only sampled tokens are compared: no top-K
# staleness   0, as OPD
# refused     as OPD; a temperature other than 1, which the endpoint does not know; longer sequences
#             than max_teacher_tokens; units that the teacher cannot score
# run         bind `recipe: recipes.opd.served:ServedOPDRecipe` with `teacher: NAME` in serve.yaml
# expect      as OPD: equal numbers give an equal step (tests/recipes/test_served_teacher.py)

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from recipes.distillation.knobs import ChunkedKnobs
from recipes.policy_gradient.recipe import AdapterRecipe
from recipes.policy_gradient.rollouts import admit, unfit
from reefcommon.events import Signal, Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner, sift
from reefcommon.recipe_context import Context


class ServedKnobs(ChunkedKnobs):
    teacher: str = Field(min_length=1, description="name of a model under `models:` in serve.yaml")
    # One update a batch, on the weights that sampled it: no correction is needed.
    max_staleness: int = Field(0, ge=0, le=0, description="only 0: nothing corrects staleness")
    max_teacher_tokens: int = Field(10240, ge=2, description="a longer unit is refused")


class ServedOPDRecipe(AdapterRecipe):
    name = "opd_served"
    summary = "a served teacher grades every token that the policy has sampled"
    dimensions = Dimensions(signal="a teacher's log-probabilities", evolves=("lora",))
    knobs_type = ServedKnobs
    knobs: ServedKnobs

    async def signal(self, unit: Unit, ctx: Context) -> Signal | None:
        if self.ungradable(unit) is not None:
            return Signal(score=unit.score)  # `decide` refuses it, and says why
        scores = await ctx.models[self.knobs.teacher].score(unit.tokens, purpose="opd teacher")
        return Signal(score=unit.score, logprobs=tuple(scores[unit.prompt_length - 1 :]))

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        knobs = self.knobs
        fit = admit(waiting, serving, knobs.max_staleness, knobs.score_range, scored=False)
        graded, refused = sift(fit.batch, lambda unit: self.ungradable(unit) or ungraded(unit))
        return Decision.of(graded, (*fit.refused, *refused), knobs.batch_size)

    def ungradable(self, unit: Unit) -> str | None:
        """Return why the teacher is not asked about a unit, or None."""
        if (reason := unfit(unit, scored=False)) is not None:
            return reason
        if unit.temperature != 1:
            return "teacher_knows_no_temperature"
        return "teacher_sequence_too_long" if self._too_long(unit) else None

    def _too_long(self, unit: Unit) -> bool:
        return len(unit.tokens) > self.knobs.max_teacher_tokens

    def learner(self, model_path: Path) -> Learner:
        from recipes.opd.served_learner import GradedLearner  # torch: in the step process only

        return GradedLearner(self.knobs, model_path)


def ungraded(unit: Unit) -> str | None:
    """Return why a unit has no grade for each of its response tokens, or None."""
    grades = unit.signal.logprobs if unit.signal else ()
    return None if len(grades) == len(unit.loss_mask) else "not_graded"
