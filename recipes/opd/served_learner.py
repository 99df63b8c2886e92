"""The step of OPD with a served teacher: score, gap, loss, backward, update."""

# Shapes: B rollouts, R response positions, N trained positions, H hidden units.

from collections.abc import Sequence

from recipes.distillation.comparison import log_likelihood
from recipes.distillation.divergences import sampled_reverse_kl
from recipes.distillation.placement import at_trained, in_place
from recipes.distillation.weights import masked_mean
from recipes.opd.served import ServedKnobs, ungraded
from recipes.policy_gradient.learner import AdapterLearner
from recipes.policy_gradient.rollouts import micro_batches, rollout
from reefcommon.errors import Poison
from reefcommon.events import Unit
from reefcommon.metrics import DistillationMetric
from reefcommon.recipe import StepResult


class GradedLearner(AdapterLearner):
    """A student whose tokens are graded already; see `reefcommon.recipe.Learner`."""

    knobs: ServedKnobs

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        rollouts = [rollout(unit, knobs.score_range, scored=False) for unit in batch]
        grades = [_grades(unit) for unit in batch]
        total = apart = gap = tokens = 0.0

        for indices in micro_batches(rollouts, knobs.micro_batch_tokens):
            padded = self.policy.pad([rollouts[i] for i in indices])
            at = at_trained(padded, self.policy.hidden(padded))
            logp_N = log_likelihood(at, self.policy.logits, knobs.chunk_positions)
            teacher_N = logp_N.new_tensor([grade for i in indices for grade in grades[i]])
            apart_N = sampled_reverse_kl(logp_N, teacher_N)
            each_B = masked_mean(in_place(apart_N, padded.mask_BR), padded.mask_BR)
            loss = each_B.sum() / len(rollouts)  # its share of the batch's mean
            loss.backward()  # type: ignore[no-untyped-call]

            logp_BR = in_place(logp_N.detach(), padded.mask_BR)
            total += float(loss.detach())
            apart += float(apart_N.detach().sum())
            gap += float(((logp_BR - padded.behaviour_BR).abs() * padded.mask_BR).sum())
            tokens += logp_N.shape[0]

        rewards = [unit.reward for unit in batch if unit.reward is not None]
        metrics: dict[DistillationMetric, float] = {
            "distill/loss": total,
            "distill/divergence": apart / tokens,
            "distill/teacher_gap": -apart / tokens,
            "distill/trained_units": float(len(rollouts)),
            "distill/trained_tokens": tokens,
            "train_rollout_logprob_abs_diff": gap / tokens,
            "reward_mean": sum(rewards) / len(rewards) if rewards else 0.0,
            "batch_size": float(len(batch)),
            "policy_grad_norm": self.policy.update(),
        }
        return self._done(metrics)


def _grades(unit: Unit) -> list[float]:
    """Return the teacher's log-probabilities of the sampled tokens. Raises Poison without them."""
    if unit.signal is None or ungraded(unit):
        raise Poison(f"unit {unit.event_id} cannot be trained on: not_graded")
    pairs = zip(unit.signal.logprobs, unit.loss_mask, strict=True)
    return [grade for grade, bit in pairs if bit]
