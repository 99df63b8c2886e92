"""The step of OpenClaw-RL: score, teach, credit, losses, backward, update."""

# Shapes: B rollouts, R response positions, N sampled tokens of a group of rollouts, H hidden units,
# V vocabulary, K kept ids.

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recipes.distillation.comparison import kept_ids, of_token
from recipes.distillation.divergences import divergence, restrict
from recipes.distillation.placement import at_trained, in_place
from recipes.distillation.tokens import PromptTokenizer
from recipes.openclaw_rl.knobs import Knobs
from recipes.policy_gradient.frozen import base_model
from recipes.policy_gradient.learner import AdapterLearner, reward_metrics
from recipes.policy_gradient.losses import sample_mean
from recipes.policy_gradient.rollouts import Rollout, micro_batches, rollout
from reefcommon.errors import Poison
from reefcommon.events import Unit
from reefcommon.recipe import StepResult

_FURTHEST = 20.0
"""Log-ratios are held within this, so that their exponential is finite."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A judged turn. `teacher` reads the hint before the same response; None: there is no hint."""

    student: Rollout
    teacher: Rollout | None


def credit(rewards: Sequence[float], knobs: Knobs) -> list[float]:
    """Return the advantage of each turn, the same for all of its tokens."""
    # A hint without a vote, or with votes that failed, is no reward of 0: it has no part in this.
    votes = [reward for reward in rewards if reward]
    mean = sum(votes) / max(len(votes), 1) if knobs.reward_baseline == "batch_mean" else 0.0
    return [reward - mean if reward else 0.0 for reward in rewards]


def clipped(ratio: Tensor, advantage: Tensor, knobs: Knobs) -> Tensor:
    """Return the loss - min(ratio A, clip(ratio) A). Only the ratio carries a gradient."""
    inside = ratio.clamp(1.0 - knobs.eps_clip, 1.0 + knobs.eps_clip_high)
    return torch.maximum(-advantage * ratio, -advantage * inside)


def taught(p_NV: Tensor, t_NV: Tensor, knobs: Knobs) -> Tensor:
    """Return the loss of each token [N] against the teacher. Inputs are log-probabilities."""
    if knobs.distillation != "topk_select":
        ids_NK = kept_ids(t_NV, knobs.teacher_top_k)
        p_NK, t_NK = (restrict(logp, ids_NK, "tail") for logp in (p_NV, t_NV))
        return divergence(p_NK, t_NK, knobs.distillation)
    # The student's likeliest tokens in this forward, each weighted by its share among them. There
    # is one optimizer step for each batch: the old policy is this forward without its gradient.
    ids_NK = kept_ids(p_NV, knobs.student_top_k)
    now_NK, teacher_NK = p_NV.gather(-1, ids_NK), t_NV.gather(-1, ids_NK)
    old_NK = now_NK.detach()
    share_NK = torch.softmax(old_NK, dim=-1)
    gap_NK = (teacher_NK - old_NK).clamp(-knobs.diff_clip, knobs.diff_clip)
    return clipped((now_NK - old_NK).exp(), gap_NK * share_NK, knobs).sum(-1)


class OpenClawRLLearner(AdapterLearner):
    """See `reefcommon.recipe.Learner`."""

    knobs: Knobs

    def __init__(self, knobs: Knobs, model_path: Path) -> None:
        super().__init__(knobs, model_path)
        self.teacher = base_model(self.policy)
        self.tokenizer = PromptTokenizer(model_path)

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        lessons = [self._lesson(unit) for unit in batch]
        rollouts = [lesson.student for lesson in lessons]
        advantages = credit([one.reward for one in rollouts], knobs)
        rl_weight = 0.0 if knobs.objective == "opd" else knobs.rl_weight
        sums = dict.fromkeys(("loss", "rl_loss", "opd_loss", "clipped", "gap", "tokens"), 0.0)

        for indices in micro_batches([_longer(one) for one in lessons], knobs.micro_batch_tokens):
            group = [lessons[i] for i in indices]
            logp_BR, opd_BR, mask_BR, behaviour_BR = self._compare(group)
            gap_BR = (logp_BR - behaviour_BR).clamp(-_FURTHEST, _FURTHEST)
            advantage_B1 = mask_BR.new_tensor([advantages[i] for i in indices])[:, None]
            rl_BR = clipped(gap_BR.exp(), advantage_B1, knobs)
            share = len(group) / len(lessons)  # of the batch's mean
            rl = sample_mean(rl_BR, mask_BR) * share
            opd = sample_mean(opd_BR, mask_BR) * share
            loss = opd * knobs.opd_weight + rl * rl_weight
            loss.backward()  # type: ignore[no-untyped-call]

            outside_BR = (gap_BR.exp() < 1 - knobs.eps_clip) | (
                gap_BR.exp() > 1 + knobs.eps_clip_high
            )
            for name, value in (("loss", loss), ("rl_loss", rl), ("opd_loss", opd)):
                sums[name] += float(value.detach())
            sums["clipped"] += float((outside_BR * mask_BR).sum())
            sums["gap"] += float((gap_BR.detach().abs() * mask_BR).sum())
            sums["tokens"] += float(mask_BR.sum())

        return self._result(batch, lessons, sums, self.policy.update())

    def _lesson(self, unit: Unit) -> Lesson:
        student = rollout(unit, self.knobs.score_range)
        messages = unit.signal.teacher if unit.signal else ()
        if not messages or self.knobs.objective == "binary":
            return Lesson(student, None)
        try:
            ids = self.tokenizer.prompt(messages, unit)
        except Poison:
            return Lesson(student, None)  # the vote is still worth a step
        if len(ids) + len(student.response) > self.knobs.max_teacher_tokens:
            return Lesson(student, None)
        return Lesson(student, replace(student, prompt=ids))

    def _compare(self, group: Sequence[Lesson]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log-probabilities, distillation losses, mask and behaviour, [B, R] each."""
        padded = self.policy.pad([one.student for one in group])
        mask_BR, sampled_BR = padded.mask_BR, padded.mask_BR.bool()
        at = at_trained(padded, self.policy.hidden(padded))
        guided_B = sampled_BR.new_tensor([one.teacher is not None for one in group])
        guided_N = guided_B[:, None].expand_as(sampled_BR)[sampled_BR]
        teacher_NH = at.hidden_NH.detach().clone()
        if guided_B.any():
            hidden_GRH = self.teacher.hidden([one.teacher for one in group if one.teacher])
            # As wide as the group: the longest response may have no teacher.
            missing = mask_BR.shape[1] - hidden_GRH.shape[1]
            hidden_GRH = torch.nn.functional.pad(hidden_GRH, (0, 0, 0, missing))
            teacher_NH[guided_N] = hidden_GRH[sampled_BR[guided_B]]
        inputs = (at.hidden_NH, teacher_NH, at.token_N, at.temperature_N1, guided_N)
        sizes = (torch.split(each, self.knobs.chunk_positions) for each in inputs)
        chunks = zip(*sizes, strict=True)
        logp_N, opd_N = map(torch.cat, zip(*(self._chunk(*chunk) for chunk in chunks), strict=True))
        return in_place(logp_N, mask_BR), in_place(opd_N, mask_BR), mask_BR, padded.behaviour_BR

    def _chunk(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        # The distributions of a whole batch do not fit into memory: the output layer runs on a
        # chunk of tokens, and again in the backward pass.
        found: tuple[Tensor, Tensor] = checkpoint(
            self._terms, *inputs, use_reentrant=False, preserve_rng_state=False
        )
        return found

    def _terms(
        self, s_NH: Tensor, t_NH: Tensor, token_N: Tensor, temperature_N1: Tensor, guided_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        p_NV = torch.log_softmax(self.policy.logits(s_NH) / temperature_N1, dim=-1)
        logp_N = of_token(p_NV, token_N)
        if not guided_N.any():
            return logp_N, torch.zeros_like(logp_N)
        with torch.no_grad():
            t_NV = torch.log_softmax(self.teacher.logits(t_NH) / temperature_N1, dim=-1)
        return logp_N, taught(p_NV, t_NV, self.knobs) * guided_N

    def _result(
        self, batch: Sequence[Unit], lessons: Sequence[Lesson], sums: dict[str, float], norm: float
    ) -> StepResult:
        tokens = max(sums["tokens"], 1.0)
        self.steps += 1
        roles = [unit.signal.labels.get("next_role") for unit in batch if unit.signal]
        metrics = {
            **{
                str(name): value
                for name, value in reward_metrics([x.student for x in lessons]).items()
            },
            "policy_loss": sums["loss"],
            "openclaw/rl_loss": sums["rl_loss"],
            "openclaw/opd_loss": sums["opd_loss"],
            "openclaw/better": float(sum(one.student.reward > 0 for one in lessons)),
            "openclaw/worse": float(sum(one.student.reward < 0 for one in lessons)),
            "openclaw/hints": float(sum(one.teacher is not None for one in lessons)),
            "openclaw/tool_results": float(roles.count("tool")),
            "pg_clipfrac": sums["clipped"] / tokens,
            "train_rollout_logprob_abs_diff": sums["gap"] / tokens,
            "response_tokens": float(sum(len(one.student.response) for one in lessons)),
            "policy_grad_norm": norm,
        }
        return StepResult(step=self.steps, metrics=metrics)


def _longer(lesson: Lesson) -> Rollout:
    """The longer of both rollouts: a micro batch must hold either."""
    teacher = lesson.teacher
    if teacher is None or len(teacher.prompt) < len(lesson.student.prompt):
        return lesson.student
    return teacher
