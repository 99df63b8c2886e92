"""What the generation loop tells the request's side, in order: prompt scores (if asked), deltas, one end per choice."""

from dataclasses import dataclass, field

from services.engine.domain.spans import VersionSpan


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its natural-log probability; `rank` counts from 1; `top` are the best (id, logprob), best first."""

    token_id: int
    logprob: float
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of prompt tokens 1.. (the first has none); comes before every delta."""

    scores: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one choice. `tokens` holds exactly what the engine sampled, EOS included; `text` may lag."""

    index: int
    text: str
    tokens: tuple[TokenLogprob, ...]
    version: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    spans: tuple[VersionSpan, ...] = ()
    """All of the choice's spans; set with the finish reason."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without an answer."""

    error: Exception


Event = PromptScores | Delta | Failed


@dataclass(slots=True)
class Choice:
    """A whole answer, summed up from its deltas."""

    index: int
    text: str = ""
    tokens: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    version: str = ""
    spans: tuple[VersionSpan, ...] = ()

    def add(self, delta: Delta) -> None:
        """Take one more delta of this choice."""
        self.text += delta.text
        self.tokens.extend(delta.tokens)
        self.version = delta.version
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason, self.spans = (
                delta.finish_reason,
                delta.stop_reason,
                delta.spans,
            )
