"""The step of TTT-Discover: credit, the frozen base, score, loss, backward, update."""

# Shapes: B rollouts, R response positions.

from collections.abc import Sequence

import torch
from torch import Tensor

from recipes.policy_gradient.barrier import CORRECTS
from recipes.policy_gradient.learner import AdapterLearner, TokenTotals, reward_metrics
from recipes.policy_gradient.rollouts import Rollout, micro_batches, rollout
from recipes.ttt_discover.advantages import adaptive_beta, entropic, fold_kl, informative
from recipes.ttt_discover.advantages import mean_baseline as from_mean
from recipes.ttt_discover.knobs import Knobs
from reefcommon.errors import Poison
from reefcommon.events import Unit
from reefcommon.metrics import StepMetric
from reefcommon.recipe import StepResult


def groups_of(batch: Sequence[Unit]) -> dict[int, list[int]]:
    """Return the indices of each group of the grid. Raises Poison without metadata."""
    groups: dict[int, list[int]] = {}
    for index, unit in enumerate(batch):
        group = unit.metadata.get("group")
        if type(group) is not int:
            raise Poison(f"unit {unit.event_id} names no group of a grid")
        groups.setdefault(group, []).append(index)
    return groups


def padded(rows: Sequence[Sequence[float]], like_BR: Tensor) -> Tensor:
    """Return rows of different lengths as [B, R], 0 past their ends."""
    width = like_BR.shape[1]
    return like_BR.new_tensor([[*row, *[0.0] * (width - len(row))] for row in rows])


def token_sum(logp_BR: Tensor, behaviour_BR: Tensor, advantage_BR: Tensor) -> Tensor:
    """Return the sum over all tokens of - exp(log pi - log q) * A, the ratio differentiated."""
    return -((logp_BR - behaviour_BR).exp() * advantage_BR).sum()


class TTTDiscoverLearner(AdapterLearner):
    """An actor alone; see `reefcommon.recipe.Learner`."""

    knobs: Knobs

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs, policy = self.knobs, self.policy
        whole = [rollout(unit, knobs.score_range, corrects=CORRECTS) for unit in batch]
        metrics = reward_metrics(whole)

        rollouts, advantages, credited = self._credit(batch, whole)
        advantages_BR, drift = self._pull_to_base(rollouts, advantages)

        totals, largest = TokenTotals(sum(len(one.response) for one in rollouts)), 0.0
        for indices in micro_batches(rollouts, knobs.micro_batch_tokens):
            group = [rollouts[i] for i in indices]
            scored = policy.score(group)
            # Not masked: each submitted token carries the advantage of its trajectory, also a token
            # that was forced, such as the end of a thought that ran too long. It is part of why the
            # answer came. Only the pull to the base is masked, since the policy never chose there.
            # Reef records no log-probability of a forced token: its ratio is 1.
            sampled_BR = scored.mask_BR.bool()
            behaviour_BR = torch.where(sampled_BR, scored.behaviour_BR, scored.logp_BR.detach())
            # Padding has the advantage 0.
            advantage_BR = padded([advantages_BR[i] for i in indices], scored.logp_BR)
            loss = token_sum(scored.logp_BR, behaviour_BR, advantage_BR)
            loss.backward()  # type: ignore[no-untyped-call]
            totals.add(scored, torch.ones_like(scored.mask_BR), loss)
            largest = max(largest, float((scored.ratio() * scored.mask_BR).max()))

        metrics |= {**totals.metrics(), **credited, "ttt/base_kl": drift, "ttt/ratio_max": largest}
        metrics["policy_grad_norm"] = policy.update()
        return self._done(metrics)

    def _credit(
        self, batch: Sequence[Unit], rollouts: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[float], dict[StepMetric, float]]:
        """Return the rollouts that are trained on, their advantages, and metrics."""
        groups = groups_of(batch)
        rewards = {group: [rollouts[i].reward for i in rows] for group, rows in groups.items()}
        kept, retained = informative(rewards)
        credit = entropic if self.knobs.algorithm == "entropic" else from_mean
        advantages = [advantage for group in kept for advantage in credit(rewards[group])]
        betas = [adaptive_beta(rewards[group]) for group in kept]
        metrics: dict[StepMetric, float] = {
            "ttt/beta_mean": sum(betas) / len(betas),
            "ttt/constant_groups": float(len(groups) - len(kept) + retained),
            "ttt/constant_groups_retained": float(retained),
        }
        return [rollouts[i] for group in kept for i in groups[group]], advantages, metrics

    def _pull_to_base(
        self, rollouts: Sequence[Rollout], advantages: Sequence[float]
    ) -> tuple[list[list[float]], float]:
        """Return advantages of each token, and the distance from the frozen base in nats."""
        base: list[list[float]] = [[] for _ in rollouts]
        for indices in micro_batches(rollouts, self.knobs.micro_batch_tokens):
            logp_BR = self.policy.base_logp([rollouts[i] for i in indices])
            for i, row in zip(indices, logp_BR.tolist(), strict=True):
                base[i] = row[: len(rollouts[i].response)]
        behaviour = [one.behaviour_logp for one in rollouts]
        masks = [one.mask for one in rollouts]
        return fold_kl(advantages, behaviour, base, masks, self.knobs.kl_coef)
