"""The step of SFT: score, loss, backward, update."""

# Shapes: B rollouts, R response positions, N trained positions, H hidden units.

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recipes.distillation.comparison import log_likelihood
from recipes.distillation.messages import demonstration_in
from recipes.distillation.placement import at_trained, in_place
from recipes.distillation.tokens import PromptTokenizer
from recipes.distillation.weights import masked_mean
from recipes.policy_gradient.learner import AdapterLearner
from recipes.policy_gradient.rollouts import Rollout, micro_batches, rollout
from recipes.sft.knobs import Knobs
from reefcommon.errors import Poison
from reefcommon.events import Unit
from reefcommon.metrics import DistillationMetric
from reefcommon.recipe import StepResult


class SFTLearner(AdapterLearner):
    """A policy that imitates; see `reefcommon.recipe.Learner`."""

    knobs: Knobs

    def __init__(self, knobs: Knobs, model_path: Path) -> None:
        super().__init__(knobs, model_path)
        self.tokens = PromptTokenizer(model_path)

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        targets = [self.target(unit) for unit in batch]
        total = 0.0

        for indices in micro_batches(targets, knobs.micro_batch_tokens):
            padded = self.policy.pad([targets[i] for i in indices])
            hidden_BRH = self.policy.hidden(padded)
            at = at_trained(padded, hidden_BRH)
            logp_N = log_likelihood(at, self.policy.logits, knobs.chunk_positions)
            logp_BR = in_place(logp_N, padded.mask_BR)
            loss = -masked_mean(logp_BR, padded.mask_BR).sum() / len(targets)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())

        rewards = [unit.reward for unit in batch if unit.reward is not None]
        metrics: dict[DistillationMetric, float] = {
            "distill/loss": total,
            "distill/trained_units": float(len(targets)),
            "distill/trained_tokens": float(sum(sum(one.mask) for one in targets)),
            "reward_mean": sum(rewards) / len(rewards) if rewards else 0.0,
            "batch_size": float(len(batch)),
            "policy_grad_norm": self.policy.update(),
        }
        return self._done(metrics)

    def target(self, unit: Unit) -> Rollout:
        """Return the tokens to imitate. Raises Poison if there are none."""
        scored = self.knobs.target == "answer"
        own = rollout(unit, self.knobs.score_range, scored=scored)
        if scored:
            return own
        if (text := demonstration_in(unit)) is None:
            raise Poison(f"unit {unit.event_id} brings no demonstration")
        ids = self.tokens.answer(text)
        unknown = (0.0,) * len(ids)  # no weights have sampled these tokens
        return replace(own, response=ids, mask=(1,) * len(ids), behaviour_logp=unknown)
