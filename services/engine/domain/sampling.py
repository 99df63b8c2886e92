"""How a request wants its tokens drawn, checked once at the door."""

import math
from dataclasses import dataclass

from services.engine.domain.errors import InvalidRequestError

MAX_ALTERNATIVES = 50
MAX_STOPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request. Raises `InvalidRequestError` naming the field that is out of range.

    Log-probabilities are always of `log_softmax(logits / temperature)` after penalties and before top-k and top-p
    (temperature 0 counts as 1 there): what a trainer recomputes from the same ids.
    """

    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 and -1: off."""
    seed: int | None = None
    """Choice i of n draws with seed + i."""
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    """Alternatives per token; 0: the sampled one alone; None: no log-probabilities in the answer."""
    prompt_logprobs: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Check every range."""
        for field, low, high in _RANGES:
            _within(field, getattr(self, field), low, high)
        if not self.top_p > 0:
            raise InvalidRequestError("top_p", f"top_p must be in (0, 1], got {self.top_p}")
        if not self.repetition_penalty > 0:
            raise InvalidRequestError(
                "repetition_penalty",
                f"repetition_penalty must be above 0, got {self.repetition_penalty}",
            )
        if self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                "min_tokens",
                f"min_tokens ({self.min_tokens}) must not be above max_tokens ({self.max_tokens})",
            )
        if any(not text for text in self.stop):
            raise InvalidRequestError("stop", "stop must not contain an empty string")
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequestError(
                "stop", f"stop takes at most {MAX_STOPS} strings, got {len(self.stop)}"
            )

    @property
    def greedy(self) -> bool:
        """No draw at all."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """The logits depend on the tokens so far."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    @property
    def filtered(self) -> bool:
        """Only a part of the vocabulary can be drawn."""
        return not self.greedy and (self.top_p < 1.0 or self.top_k > 0)


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 0, math.inf),
    ("n", 1, 128),
    ("temperature", 0.0, 10.0),
    ("top_p", 0.0, 1.0),
    ("top_k", -1, math.inf),
    ("seed", -(2**63), 2**64 - 1),
    ("min_tokens", 0, math.inf),
    ("logprobs", 0, MAX_ALTERNATIVES),
    ("prompt_logprobs", 0, MAX_ALTERNATIVES),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.0, 100.0),
)


def _within(field: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    # `not (a <= b)` also refuses NaN.
    if not low <= value <= high:
        limit = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise InvalidRequestError(field, f"{field} must be {limit}, got {value}")


def token_budget(
    prompt_length: int, asked: int | None, max_model_len: int, field: str = "max_tokens"
) -> int:
    """How many tokens may be generated: what was asked for, or what is left of the context.

    Raises `InvalidRequestError` when the prompt alone fills the context or prompt plus asked tokens exceed it.
    """
    if prompt_length == 0:
        raise InvalidRequestError("prompt", "the prompt is empty: at least one token is needed")
    room = max_model_len - prompt_length
    if room < 1 or (asked is not None and asked > room):
        wanted = "" if asked is None else f" plus {field} ({asked})"
        msg = (
            f"This model's maximum context length is {max_model_len} tokens: the prompt ({prompt_length} tokens)"
            f"{wanted} does not fit. Please shorten the prompt or the completion."
        )
        raise InvalidRequestError("messages" if asked is None else field, msg)
    return room if asked is None else asked
