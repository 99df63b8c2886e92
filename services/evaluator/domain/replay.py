"""Judging by experience: held-out answers with high scores should be likelier by a candidate."""

# The advantage of a held-out sample is score - mean score. A side's score is the advantage times
# the mean log-probability of the sampled tokens: `candidate > head` holds if the likelihood moved
# in the direction of the advantage. A pair is a prompt, with the mean over its samples: answers to
# one prompt move together, so that they are not independent evidence.

from collections.abc import Mapping, Sequence
from math import fsum

from pydantic import FiniteFloat

from reefcommon.events import Release, SampleReady, TaskResult, Value
from reefcommon.releases import base_weights

KEPT = 64
EQUAL_WITHIN = 1e-9


class HeldOut(Value):
    """The kept part of a sample. `loss_mask` covers tokens[prompt_length:]."""

    sample_id: str
    score: FiniteFloat
    tokens: tuple[int, ...]
    prompt_length: int
    loss_mask: tuple[int, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.tokens[: self.prompt_length]


def held_out(sample: SampleReady) -> HeldOut | None:
    """Return a sample's evidence; None without a score or tokens of the model's own."""
    if (
        sample.untrainable is not None
        or sample.score is None
        or sample.prompt_length < 1
        or not any(sample.loss_mask)
        or len(sample.loss_mask) != len(sample.tokens) - sample.prompt_length
    ):
        return None
    kept = sample.model_dump(include=set(HeldOut.model_fields))
    return HeldOut.model_validate({"sample_id": sample.event_id, **kept})


def advantages(samples: Sequence[HeldOut]) -> list[tuple[HeldOut, float]]:
    if not samples:
        return []
    mean = fsum(sample.score for sample in samples) / len(samples)
    centred = [(sample, sample.score - mean) for sample in samples]
    return [(sample, advantage) for sample, advantage in centred if abs(advantage) > EQUAL_WITHIN]


def lacking(samples: Sequence[HeldOut], needed: int) -> str:
    """Return why these samples do not suffice yet; "" if they can."""
    prompts = len({sample.prompt for sample, _ in advantages(samples)})
    if prompts >= needed:
        return ""
    held = f"one report in five is held out to judge by, {len(samples)} so far"
    few = f"{prompts} of {needed} prompts that it needs have scores that differ from the mean"
    return f"more reports are needed: {few} ({held})"


def mean_logprob(sample: HeldOut, prompt_logprobs: Sequence[float]) -> float:
    """Return the mean log-probability of the sampled tokens, in nats.

    `prompt_logprobs[i]` belongs to token i + 1.
    """
    start = sample.prompt_length - 1
    sampled = [prompt_logprobs[start + i] for i, mask in enumerate(sample.loss_mask) if mask]
    return fsum(sampled) / len(sampled)


def scored_pairs(
    samples: Sequence[HeldOut], candidate: Mapping[str, float], head: Mapping[str, float]
) -> tuple[TaskResult, ...]:
    """Build a pair for each prompt from each side's mean log-probability by sample id.

    A pair has the name of the prompt's first sample. A side that lacks a sample has no score.
    """
    prompts: dict[tuple[int, ...], dict[str, float]] = {}
    for sample, advantage in advantages(samples):
        prompts.setdefault(sample.prompt, {})[sample.sample_id] = advantage

    def score(weights: dict[str, float], logprobs: Mapping[str, float]) -> float | None:
        if not weights.keys() <= logprobs.keys():
            return None
        return fsum(weight * logprobs[name] for name, weight in weights.items()) / len(weights)

    return tuple(
        TaskResult(task=next(iter(one)), candidate=score(one, candidate), head=score(one, head))
        for one in prompts.values()
    )


def weights_key(head: Release, adapter: str | None) -> str:
    """Name the scoring weights: the head's base weights with an adapter's content."""
    # Two releases with the same weights have the same key: their scores are computed once.
    base = base_weights(head)
    return f"{base}+{adapter}" if adapter else base


def head_weights(head: Release) -> str:
    return weights_key(head, head.contents.get("lora") if head.adapter else None)
