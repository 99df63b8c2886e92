"""From samples to rollouts: the samples that may be trained on."""

# Pure, no torch.

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from reefcommon.errors import Poison
from reefcommon.events import Sampling, Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import DEFAULT_SCORE_RANGE, Decision, ScoreRange


@dataclass(frozen=True, slots=True)
class Rollout:
    """A trajectory as the engine sampled it.

    `response`, `mask` and `behaviour_logp` (nats) have equal length R. Mask 1: sampled by the
    policy, 0: written by the environment. `allowed`: ids that could be sampled; (): all.
    """

    sample_id: str
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    mask: tuple[int, ...]
    behaviour_logp: tuple[float, ...]
    reward: float
    temperature: float
    allowed: tuple[int, ...] = ()


def admit(
    waiting: Sequence[Unit],
    serving: LoadId,
    max_staleness: int,
    score_range: ScoreRange = DEFAULT_SCORE_RANGE,
    *,
    scored: bool = True,
    corrects: Collection[str] = (),
) -> Decision:
    """Sort the waiting samples: fit for a batch, refused with a reason, or waiting.

    A lag (`serving` minus the sample's sequence) of 0 to `max_staleness` admits. If it is negative,
    the release is not known yet and the sample waits. `scored`: a sample without a score is unfit.
    `corrects`: see `unfit`.
    """
    admitted: list[Unit] = []
    refused: list[tuple[Unit, str, int | None]] = []
    for sample in waiting:
        reason, lag = unfit(sample, score_range, scored=scored, corrects=corrects), None
        if reason is None:
            reason, lag = stale(sample, serving, max_staleness)
        if reason is not None:
            refused.append((sample, reason, lag))
        elif lag is not None and lag >= 0:
            admitted.append(sample)
    return Decision(tuple(admitted), tuple(refused))


def complete_groups(samples: Sequence[Unit], size: int) -> list[list[Unit]]:
    """Return groups of `size` samples of equal prompts, in the order of their completion."""
    groups: list[list[Unit]] = []
    open_groups: dict[tuple[int, ...], list[Unit]] = {}
    for sample in samples:
        prompt = sample.tokens[: sample.prompt_length]
        group = open_groups.setdefault(prompt, [])
        group.append(sample)
        if len(group) == size:
            groups.append(open_groups.pop(prompt))
    return groups


def stale(sample: Unit, serving: LoadId, max_lag: int) -> tuple[str | None, int | None]:
    """Return (reason, lag). The reason is None if the weights are fresh enough."""
    try:
        producing = LoadId.parse(sample.load_id or "")
    except ValueError:
        return "unknown_weights", None
    lag = producing.lag_behind(serving)
    if lag is None:
        return "other_incarnation", None
    return ("stale" if lag > max_lag else None), lag


def unfit(
    sample: Unit,
    score_range: ScoreRange = DEFAULT_SCORE_RANGE,
    *,
    scored: bool = True,
    corrects: Collection[str] = (),
) -> str | None:
    """Return why a sample cannot be trained on as the engine sampled it, or None.

    `corrects`: sampling parameters whose effect the recipe's learner repeats.
    """
    if sample.untrainable is not None:
        return f"untrainable: {sample.untrainable}"
    reward = sample.reward
    if scored and (reward is None or not math.isfinite(reward)):
        return "no_score"
    if reward is not None and not score_range[0] <= reward <= score_range[1]:
        return f"score_out_of_range: {reward:g}"
    if malformed := _malformed(sample):
        return malformed
    # A greedy choice has probability one under the sampler: there is no ratio to correct with.
    if sample.temperature <= 0:
        return "sampled_greedily"
    names = (name for sampling in sample.sampling for name in changed_by(sampling))
    changed = next((name for name in names if name not in corrects), None)
    if changed is not None:
        return f"truncated_sampling: {changed}"
    # A rollout has a single mask for all of its tokens.
    masks = {sampling.allowed_token_ids for sampling in sample.sampling}
    return "mixed_allowed_token_ids" if len(masks) > 1 else None


def _malformed(sample: Unit) -> str | None:
    length = len(sample.tokens) - sample.prompt_length
    logprobs = sample.logprobs
    if sample.prompt_length < 1 or length < 1:
        return "no_tokens"
    if not len(sample.loss_mask) == len(logprobs) == length:
        return "length_mismatch"
    if any(bit not in {0, 1} for bit in sample.loss_mask):
        return "malformed_loss_mask"
    if not any(sample.loss_mask):
        return "empty_loss_mask"
    finite = all(math.isfinite(logp) and logp <= 0 for logp in logprobs)
    return None if finite else "malformed_logprobs"


def changed_by(sampling: Sampling) -> list[str]:
    """Return the parameters that changed the distribution beyond a temperature."""
    # The importance ratio corrects a temperature, which the policy divides by too. It cannot
    # correct a truncation or a penalty: the policy has no such probabilities. A fixed set of
    # allowed ids it can: `LoraPolicy.score` takes the same softmax over them.
    changed = {
        "top_p": sampling.top_p < 1,
        "top_k": sampling.top_k > 0,
        "min_p": sampling.min_p > 0,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
        "min_tokens": sampling.min_tokens > 0,
        "logit_bias": sampling.logit_bias,
        "allowed_token_ids": bool(sampling.allowed_token_ids),
        "constrained": sampling.constrained,
    }
    return [name for name, is_changed in changed.items() if is_changed]


def rollout(
    sample: Unit,
    score_range: ScoreRange = DEFAULT_SCORE_RANGE,
    *,
    scored: bool = True,
    corrects: Collection[str] = (),
) -> Rollout:
    """Read a sample. Raises Poison, with the reason of `unfit`, if it is unfit.

    Without a score the reward is 0.
    """
    reason = unfit(sample, score_range, scored=scored, corrects=corrects)
    if reason is not None:
        raise Poison(f"sample {sample.event_id} cannot be trained on: {reason}")
    return Rollout(
        sample_id=sample.event_id,
        prompt=sample.tokens[: sample.prompt_length],
        response=sample.tokens[sample.prompt_length :],
        mask=sample.loss_mask,
        behaviour_logp=sample.logprobs,
        reward=sample.reward or 0.0,
        temperature=sample.temperature,
        allowed=sample.sampling[0].allowed_token_ids if sample.sampling else (),
    )


def micro_batches(rollouts: Sequence[Rollout], max_tokens: int) -> list[list[int]]:
    """Group rollouts of similar length, at most `max_tokens` after padding.

    A longer rollout is a group of its own. Returns indices.
    """
    lengths = [len(one.prompt) + len(one.response) for one in rollouts]
    order = sorted(range(len(rollouts)), key=lengths.__getitem__)  # stable: equal lengths in order
    groups: list[list[int]] = []
    width_prompt = width_response = 0
    for i in order:
        prompt = max(width_prompt, len(rollouts[i].prompt))
        response = max(width_response, len(rollouts[i].response))
        if not groups or (len(groups[-1]) + 1) * (prompt + response) > max_tokens:
            groups.append([])
            prompt, response = len(rollouts[i].prompt), len(rollouts[i].response)
        groups[-1].append(i)
        width_prompt, width_response = prompt, response
    return groups
