"""GRPO with SAO's mask: the control arm. The same loss, but a group of rollouts of one prompt instead of a critic.

    A   = (R - mean) / std inside a complete group of `group_size` rollouts of one prompt
    r_t = exp(log pi(a_t) - log pi_rollout(a_t)),   f(r) = r if 1 - eps_clip < r < 1 + eps_clip_high else 0
    L   = mean over rollouts of mean over tokens of  - f(r_t) A log pi(a_t)

signal      one finite score per rollout
target      a LoRA adapter on the served model
staleness   as SAO: 0 <= lag <= max_staleness is admitted; an incomplete group waits until it is complete or too old
refused     a group whose rewards are all equal (`zero_variance_group`): there is no gradient in it
run         bind `recipe: recipes.grpo.recipe:GRPORecipe` in serve.yaml
expect      tiny bandit (tests/recipes/test_grpo_learning.py): mean reward 0.1 -> above 0.8, less steady than SAO
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from recipes.policy_gradient.policy import ALL_PROJECTIONS
from recipes.policy_gradient.returns import group_advantages
from recipes.policy_gradient.rollouts import Rollout, admit
from reefcommon import recipe
from reefcommon.events import SampleReady
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner, WeightRecipe


class Knobs(recipe.Knobs):
    """What `serve.yaml` may set."""

    batch_size: int = Field(
        32, ge=2, description="rollouts per optimizer step: a multiple of group_size"
    )
    group_size: int = Field(
        8, ge=2, description="rollouts of one prompt that are compared with each other"
    )
    max_staleness: int = Field(
        0, ge=0, description="releases that a rollout's weights may be behind the head"
    )
    eps_clip: float = Field(
        0.3, gt=0, le=1, description="ratios of 1 - eps_clip and less are masked"
    )
    eps_clip_high: float = Field(
        5.0, gt=0, description="ratios of 1 + eps_clip_high and more are masked"
    )
    policy_lr: float = Field(1e-4, gt=0, description="learning rate of the adapter (AdamW)")
    entropy_coef: float = Field(
        0.0, ge=0, description="how much of the mean entropy is taken off the loss"
    )
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    lora_r: int = Field(8, ge=1, description="rank of the adapter")
    lora_alpha: int = Field(16, ge=1, description="the adapter counts alpha / r times")
    target_modules: tuple[str, ...] = Field(
        ALL_PROJECTIONS, min_length=1, description="projections that the adapter changes"
    )
    prompt_gradient: bool = Field(
        True,
        description="false: no gradient through the prompt's keys and values; several times faster",
    )
    micro_batch_tokens: int = Field(4096, ge=1, description="padded tokens per forward")
    candidate_every: int = Field(1, ge=1, description="optimizer steps between two candidates")
    seed: int = Field(0, description="of the adapter's first weights")

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.batch_size % self.group_size:
            msg = f"batch_size must be a multiple of group_size ({self.group_size})"
            raise ValueError(msg)
        return self


# ------------------------------------------------------------------ pure functions, in the order of the data


def decide(waiting: Sequence[SampleReady], serving: LoadId, knobs: Knobs) -> Decision:
    """Gather fit and fresh samples by prompt; complete groups with a spread of rewards fill the batch, oldest first."""
    sorted_out = admit(waiting, serving, knobs.max_staleness)
    open_groups: dict[tuple[int, ...], list[SampleReady]] = {}
    batch: list[SampleReady] = []
    refused = list(sorted_out.refused)
    for sample in sorted_out.admitted:
        group = open_groups.setdefault(sample.tokens[: sample.prompt_length], [])
        group.append(sample)
        if len(group) < knobs.group_size:
            continue
        del open_groups[sample.tokens[: sample.prompt_length]]
        if group_advantages([s.score or 0.0 for s in group]) is None:
            refused += [(s, "zero_variance_group", _lag(s, serving)) for s in group]
        elif len(batch) < knobs.batch_size:
            batch += group
    return Decision(
        batch=tuple(batch) if len(batch) == knobs.batch_size else (), refused=tuple(refused)
    )


def credit(rollouts: Sequence[Rollout]) -> list[float]:
    """One advantage per rollout, from the other rollouts of its prompt."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, one in enumerate(rollouts):
        groups.setdefault(one.prompt, []).append(index)
    advantages = [0.0] * len(rollouts)
    for indices in groups.values():
        for index, advantage in zip(
            indices,
            group_advantages([rollouts[i].reward for i in indices]) or [0.0] * len(indices),
            strict=True,
        ):
            advantages[index] = advantage
    return advantages


def _lag(sample: SampleReady, serving: LoadId) -> int | None:
    return LoadId.parse(sample.load_id or "").lag_behind(serving)


# ------------------------------------------------------------------ the recipe


class GRPORecipe(WeightRecipe):
    """Group-relative policy optimization with a double-sided hard mask."""

    name: ClassVar[str] = "grpo"
    summary: ClassVar[str] = (
        "groups of rollouts of one prompt train a LoRA; SAO's control arm, with the same mask against staleness"
    )
    dimensions: ClassVar[Dimensions] = Dimensions(
        signal="scores of several rollouts per prompt", acquisition="reactive", evolves=("lora",)
    )
    knobs_type: ClassVar[type[recipe.Knobs]] = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[SampleReady], serving: LoadId) -> Decision:
        """See the function of this name."""
        return decide(waiting, serving, self.knobs)

    def proposes(self, step: int) -> bool:
        """Every `candidate_every` steps."""
        return step > 0 and step % self.knobs.candidate_every == 0

    def learner(self, model_path: Path) -> Learner:
        """The actor on the base model."""
        from recipes.grpo.learner import GRPOLearner

        return GRPOLearner(self.knobs, model_path)
