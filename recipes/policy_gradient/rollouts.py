"""From samples to rollouts: which experience may be trained on, and what a learner reads of it. Pure, no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reefcommon.errors import Poison
from reefcommon.events import SampleReady
from reefcommon.ids import LoadId


@dataclass(frozen=True, slots=True)
class Rollout:
    """One trajectory as the engine sampled it. `response`, `mask`, `behaviour_logp` have equal length R; mask 1: sampled by the policy."""

    sample_id: str
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    mask: tuple[int, ...]
    behaviour_logp: tuple[float, ...]
    reward: float
    temperature: float

    @property
    def actions(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Admission:
    """Samples that may be trained on, oldest first, and those that never will: (sample, reason, lag)."""

    admitted: tuple[SampleReady, ...]
    refused: tuple[tuple[SampleReady, str, int | None], ...]


def admit(waiting: Sequence[SampleReady], serving: LoadId, max_staleness: int) -> Admission:
    """Sort the waiting samples: fit and fresh, or refused with a reason. Sequence numbers beyond `serving` go on waiting.

    lag = serving.sequence - producing.sequence within one incarnation; 0 <= lag <= max_staleness admits. A negative lag only says
    that the news of the release has not come yet.
    """
    admitted: list[SampleReady] = []
    refused: list[tuple[SampleReady, str, int | None]] = []
    for sample in waiting:
        reason, lag = unfit(sample), None
        if reason is None:
            reason, lag = stale(sample, serving, max_staleness)
        if reason is not None:
            refused.append((sample, reason, lag))
        elif lag is not None and lag >= 0:
            admitted.append(sample)
    return Admission(tuple(admitted), tuple(refused))


def stale(
    sample: SampleReady, serving: LoadId, max_staleness: int
) -> tuple[str | None, int | None]:
    """(reason, lag): why the sample's weights are too old to learn from, or None."""
    try:
        producing = LoadId.parse(sample.load_id or "")
    except ValueError:
        return "unknown_weights", None
    lag = producing.lag_behind(serving)
    if lag is None:
        return "other_incarnation", None
    return ("stale" if lag > max_staleness else None), lag


def unfit(sample: SampleReady) -> str | None:
    """Why a sample cannot be trained on by policy gradient, or None."""
    length = len(sample.tokens) - sample.prompt_length
    if sample.untrainable is not None:
        return f"untrainable: {sample.untrainable}"
    if sample.score is None or not math.isfinite(sample.score):
        return "no_score"
    if sample.prompt_length < 1 or length < 1:
        return "no_tokens"
    if not len(sample.loss_mask) == len(sample.logprobs) == length:
        return "length_mismatch"
    if any(bit not in {0, 1} for bit in sample.loss_mask):
        return "malformed_loss_mask"
    if not any(sample.loss_mask):
        return "empty_loss_mask"
    if not all(math.isfinite(logp) and logp <= 0 for logp in sample.logprobs):
        return "malformed_logprobs"
    # A greedy choice has probability one under the sampler: there is no ratio to correct with.
    return "sampled_greedily" if sample.temperature <= 0 else None


def rollout(sample: SampleReady) -> Rollout:
    """Raises Poison, with the reason of `unfit`, for a sample that cannot be trained on."""
    reason = unfit(sample)
    if reason is not None or sample.score is None:
        raise Poison(f"sample {sample.event_id} cannot be trained on: {reason}")
    return Rollout(
        sample_id=sample.event_id,
        prompt=sample.tokens[: sample.prompt_length],
        response=sample.tokens[sample.prompt_length :],
        mask=sample.loss_mask,
        behaviour_logp=sample.logprobs,
        reward=sample.score,
        temperature=sample.temperature,
    )


def micro_batches(rollouts: Sequence[Rollout], max_tokens: int) -> list[list[int]]:
    """Indices in groups of similar length, each at most `max_tokens` after padding (a longer rollout goes alone)."""
    order = sorted(
        range(len(rollouts)), key=lambda i: (len(rollouts[i].prompt) + len(rollouts[i].response), i)
    )
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
