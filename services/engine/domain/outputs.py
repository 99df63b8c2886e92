"""Events of the generation loop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.engine.domain.spans import VersionSpan


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its natural-log probability.

    `rank` 1 is the likeliest; `top`: (id, logprob) of the likeliest tokens in order.
    """

    token_id: int
    logprob: float
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of the prompt's tokens from the second on, before every delta."""

    scores: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens and text that a step added to a choice."""

    # `tokens` holds each sampled id, EOS included. `text` may lag behind them.

    index: int
    text: str
    tokens: tuple[TokenLogprob, ...]
    version: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    # All of the choice's spans; set with the finish reason.
    spans: tuple[VersionSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without an answer."""

    error: Exception


Event = PromptScores | Delta | Failed


def joined(deltas: Sequence[Delta]) -> Delta:
    """A whole choice as a delta, from all of its deltas in order."""
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    return replace(deltas[-1], text="".join(delta.text for delta in deltas), tokens=tokens)
