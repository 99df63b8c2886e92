"""Names and units of the metrics of optimizer steps."""

from typing import Literal, get_args

StepMetric = Literal[
    "policy_loss",  # score units * nats
    "pg_clipfrac",  # share of action tokens that the hard mask removes, 0 to 1
    "effective_token_rate",  # share of response tokens that give a gradient, 0 to 1
    "train_rollout_logprob_abs_diff",  # nats, mean over action tokens
    "entropy",  # nats, mean over action tokens
    "response_tokens",  # tokens of the batch
    "reward_mean",  # score units, over the rollouts of the batch
    "reward_min",  # score units
    "reward_max",  # score units
    "reward_std",  # score units
    "batch_size",  # rollouts
    "policy_grad_norm",  # before clipping
    "critic/loss",  # score units squared
    "critic/grad_norm",  # before clipping
    "critic/explained_variance",  # 1 - Var(return - value) / Var(return)
    "critic/value_mean",  # score units
    "ttt/base_kl",  # nats, mean of log q - log base over sampled tokens
    "ttt/beta_mean",  # 1 / score units, over the groups that are trained on
    "ttt/constant_groups",  # groups of equal rewards
    "ttt/constant_groups_retained",  # 1 if all groups are constant and the first is kept
    "ttt/ratio_max",  # greatest importance ratio of a sampled token
]
"""The metrics that a policy-gradient step reports, each with its unit."""

STEP_METRICS: tuple[str, ...] = get_args(StepMetric)

DistillationMetric = Literal[
    "distill/loss",  # nats
    "distill/divergence",  # nats, mean over trained tokens, without weights
    "distill/teacher_gap",  # nats, log t(y) - log p(y), mean over trained tokens
    "distill/importance",  # mean weight of a trained token, at most the cap
    "distill/trained_units",  # units of the batch with a gradient
    "distill/unguided_units",  # units without a teacher's context, which weigh nothing
    "distill/too_long",  # units whose teacher sequence is too long, which are skipped
    "distill/trained_tokens",  # tokens of the batch with a gradient
    "train_rollout_logprob_abs_diff",  # nats, mean over trained tokens
    "entropy",  # nats, mean over trained tokens
    "response_tokens",  # tokens of the batch
    "reward_mean",  # score units, over the units that have a score
    "batch_size",  # units
    "policy_grad_norm",  # before clipping
]
"""The metrics that a distillation step reports, each with its unit."""

DISTILLATION_METRICS: tuple[str, ...] = get_args(DistillationMetric)
