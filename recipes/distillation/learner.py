"""The step of distillation: score, teacher, divergence, correction, loss, backward, update."""

# Shapes: B rollouts, R response positions, N trained positions, H hidden units.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from recipes.distillation.comparison import Compared, compare
from recipes.distillation.knobs import DistillationKnobs
from recipes.distillation.lessons import Lesson, TeacherContext, given, lesson, too_long
from recipes.distillation.placement import at_trained, in_place
from recipes.distillation.tokens import PromptTokenizer
from recipes.distillation.weights import importance, masked_mean
from recipes.policy_gradient.forward import Padded
from recipes.policy_gradient.frozen import Average, FrozenModel, base_model, teacher_in
from recipes.policy_gradient.learner import AdapterLearner
from recipes.policy_gradient.rollouts import micro_batches
from reefcommon.events import Unit
from reefcommon.metrics import DistillationMetric
from reefcommon.recipe import StepResult

Contexts = Callable[[Sequence[Unit]], list[TeacherContext]]


class DistillationLearner(AdapterLearner):
    """A student and its teacher; see `reefcommon.recipe.Learner`.

    The teacher is a model in the directory `teacher`; else a moving average of the policy; at an
    `average_rate` of 0 the base model. `contexts` are the prompts that it reads.
    """

    knobs: DistillationKnobs

    def __init__(
        self,
        knobs: DistillationKnobs,
        model_path: Path,
        *,
        teacher: Path | None = None,
        contexts: Contexts = given,
    ) -> None:
        super().__init__(knobs, model_path)
        self.contexts = contexts
        self.tokens = PromptTokenizer(model_path)
        averages = knobs.average_rate > 0 and teacher is None
        self.average = Average(self.policy) if averages else None
        self.teacher: FrozenModel
        if teacher is not None:
            self.teacher = teacher_in(teacher, self.policy)
        else:
            self.teacher = self.average or base_model(self.policy)

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        pairs = zip(batch, self.contexts(batch), strict=True)
        read = [lesson(unit, one, knobs, self.tokens.prompt) for unit, one in pairs]
        lessons = [one for one in read if not too_long(one, knobs.max_teacher_tokens)]
        trained = [one for one in lessons if one.trained]
        totals = Totals(batch, read, lessons, trained)
        if not trained:
            return self._done(totals.metrics(), action="skip")

        for indices in micro_batches([one.teacher for one in trained], knobs.micro_batch_tokens):
            group = [trained[i] for i in indices]
            padded = self.policy.pad([one.student for one in group])
            student_BRH = self.policy.hidden(padded)
            teacher_BRH = self.teacher.hidden([one.teacher for one in group])
            at = at_trained(padded, student_BRH)
            teacher_NH = teacher_BRH[padded.mask_BR.bool()]
            compared = compare(at, teacher_NH, self.policy.logits, self.teacher.logits, knobs)
            apart_BR, logp_BR = (
                in_place(column_N, padded.mask_BR)
                for column_N in (compared.divergence_N, compared.logp_N)
            )
            weight_BR = importance(
                logp_BR, padded.behaviour_BR, padded.mask_BR, knobs.importance, knobs.importance_cap
            )
            weight_B = padded.mask_BR.new_tensor([one.weight for one in group])
            each_B = weight_B * masked_mean(weight_BR * apart_BR, padded.mask_BR)
            loss = each_B.sum() / len(lessons)  # its share of the batch's mean
            loss.backward()  # type: ignore[no-untyped-call]
            totals.add(compared, padded, logp_BR, weight_BR, loss)

        metrics = totals.metrics()
        metrics["policy_grad_norm"] = self.policy.update()
        if self.average is not None:
            self.average.follow(knobs.average_rate)
        return self._done(metrics)

    def save(self, directory: Path) -> None:
        super().save(directory)
        if self.average is not None:
            self.average.save(directory)

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        # The average follows the actor: a rejected actor takes its average with it.
        super().load(directory, actor_from=actor_from)
        if self.average is not None:
            self.average.load(actor_from or directory)

    def adopt(self, adapter: Path | None) -> None:
        super().adopt(adapter)
        if self.average is not None:
            self.average.restart()


@dataclass(slots=True)
class Totals:
    """Sums over the trained tokens of a step."""

    batch: Sequence[Unit]
    read: Sequence[Lesson]
    lessons: Sequence[Lesson]
    trained: Sequence[Lesson]
    tokens: int = 0
    loss: float = 0.0
    divergence: float = 0.0
    teacher_gap: float = 0.0
    entropy: float = 0.0
    weight: float = 0.0
    logp_gap: float = 0.0

    def add(
        self, one: Compared, padded: Padded, logp_BR: Tensor, weight_BR: Tensor, loss: Tensor
    ) -> None:
        mask_BR = padded.mask_BR
        self.tokens += one.logp_N.shape[0]
        self.loss += float(loss.detach())
        self.divergence += float(one.divergence_N.detach().sum())
        self.teacher_gap += float((one.teacher_N - one.logp_N).sum())
        self.entropy += float(one.entropy_N.sum())
        self.weight += float((weight_BR * mask_BR).sum())
        self.logp_gap += float(((logp_BR.detach() - padded.behaviour_BR).abs() * mask_BR).sum())

    def metrics(self) -> dict[DistillationMetric, float]:
        rewards = [unit.reward for unit in self.batch if unit.reward is not None]
        tokens = max(self.tokens, 1)
        return {
            "distill/loss": self.loss,
            "distill/divergence": self.divergence / tokens,
            "distill/teacher_gap": self.teacher_gap / tokens,
            "distill/importance": self.weight / tokens,
            "distill/trained_units": float(len(self.trained)),
            "distill/unguided_units": float(sum(one.weight == 0 for one in self.lessons)),
            "distill/too_long": float(len(self.read) - len(self.lessons)),
            "distill/trained_tokens": float(self.tokens),
            "train_rollout_logprob_abs_diff": self.logp_gap / tokens,
            "entropy": self.entropy / tokens,
            "response_tokens": float(sum(len(one.student.response) for one in self.read)),
            "reward_mean": sum(rewards) / len(rewards) if rewards else 0.0,
            "batch_size": float(len(self.batch)),
        }
