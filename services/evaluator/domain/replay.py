"""Judging by experience: does the candidate make held-out answers that were scored above average more likely, and those below less?

A pair is one held-out sample. Its advantage is score - mean score; a side's score is advantage * mean log-probability of the sampled
tokens, so that `candidate > head` holds exactly where the likelihood moved in the direction of the advantage.
"""

from collections.abc import Sequence
from math import fsum

from pydantic import FiniteFloat

from reefcommon.events import SampleReady, TaskResult, Value

MIN_EVIDENCE = 5
KEPT = 64
EQUAL_WITHIN = 1e-9


class HeldOut(Value):
    """What is kept of a held-out sample. `loss_mask` has the length of the response, `len(tokens) - prompt_length`."""

    sample_id: str
    score: FiniteFloat
    tokens: tuple[int, ...]
    prompt_length: int
    loss_mask: tuple[int, ...]


def held_out(sample: SampleReady) -> HeldOut | None:
    """The part of a sample that evidence is made of; None where it has no score or no tokens of the model's own."""
    usable = (
        sample.untrainable is None
        and sample.score is not None
        and sample.prompt_length > 0
        and any(sample.loss_mask)
    )
    if (
        not usable
        or sample.score is None
        or len(sample.loss_mask) != len(sample.tokens) - sample.prompt_length
    ):
        return None
    return HeldOut(
        sample_id=sample.event_id,
        score=sample.score,
        tokens=sample.tokens,
        prompt_length=sample.prompt_length,
        loss_mask=sample.loss_mask,
    )


def advantages(samples: Sequence[HeldOut]) -> list[tuple[HeldOut, float]]:
    """Samples with score - mean score; those at the mean say nothing and are left out."""
    if not samples:
        return []
    mean = fsum(sample.score for sample in samples) / len(samples)
    return [
        (sample, sample.score - mean)
        for sample in samples
        if abs(sample.score - mean) > EQUAL_WITHIN
    ]


def lacking(samples: Sequence[HeldOut]) -> str:
    """Why these samples cannot judge yet; empty where they can."""
    found = len(advantages(samples))
    if found >= MIN_EVIDENCE:
        return ""
    return f"insufficient_evidence: {found} held-out samples differ from the mean score, {MIN_EVIDENCE} are needed ({len(samples)} are there)"


def mean_logprob(sample: HeldOut, prompt_logprobs: Sequence[float]) -> float:
    """Mean log-probability of the sampled tokens. `prompt_logprobs[i]` is that of token i + 1."""
    start = sample.prompt_length - 1
    sampled = [prompt_logprobs[start + i] for i, mask in enumerate(sample.loss_mask) if mask]
    return fsum(sampled) / len(sampled)


def pair(sample: HeldOut, advantage: float, candidate_logp: float, head_logp: float) -> TaskResult:
    """The evidence of one sample."""
    return TaskResult(
        task=sample.sample_id, candidate=advantage * candidate_logp, head=advantage * head_logp
    )
