"""Sampling parameters and their checks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from services.engine.domain.errors import InvalidRequestError, wrong

MAX_ALTERNATIVES = 50
MAX_STOPS = 16
# Each token is compared with each stop string.
MAX_STOP_CHARACTERS = 256
MAX_BIASES = 1024
MAX_ALLOWED = 1024
# As in vLLM. Below it, logits / temperature overflows float32 before it changes the argmax.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of a request. Raises `InvalidRequestError` if a field is out of range.

    A log-probability is `log_softmax(logits / temperature)` after `allowed_token_ids`,
    `logit_bias`, penalties and `min_tokens`, before top-k, top-p and min-p. Temperature 0 counts
    as 1.
    """

    # A trainer recomputes log_softmax(logits / temperature) from the ids. It can correct a
    # truncated or penalised distribution only if it knows of it: see `effective`.

    max_tokens: int
    n: int = 1
    # 0 is greedy; a value below `GREEDY_BELOW` becomes 0.
    temperature: float = 1.0
    top_p: float = 1.0
    # 0 and -1: off.
    top_k: int = 0
    # Least probability of a token, as a share of the likeliest token's.
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    # Alternatives per token; 0: only the sampled token; None: no log-probabilities.
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    # Empty: the whole vocabulary. EOS counts like any other id.
    allowed_token_ids: tuple[int, ...] = ()
    # Lower is served first; above 0 is background work.
    priority: int = 0

    def __post_init__(self) -> None:
        for field, low, high in _RANGES:
            _check_range(field, getattr(self, field), low, high)
        if not self.top_p > 0:
            raise wrong("top_p", "must be above 0")
        if self.min_tokens > self.max_tokens:
            words = f"({self.min_tokens}) must not be above max_tokens ({self.max_tokens})"
            raise wrong("min_tokens", words)
        _check_count("stop", len(self.stop), MAX_STOPS)
        if any(not 0 < len(text) <= MAX_STOP_CHARACTERS for text in self.stop):
            raise wrong("stop", f"takes strings of 1 to {MAX_STOP_CHARACTERS} characters")
        _check_count("logit_bias", len(self.logit_bias), MAX_BIASES)
        for _, bias in self.logit_bias:
            _check_range("logit_bias", bias, -100.0, 100.0)
        _check_count("allowed_token_ids", len(self.allowed_token_ids), MAX_ALLOWED)
        if self.temperature < GREEDY_BELOW:
            object.__setattr__(self, "temperature", 0.0)

    def check_vocabulary(self, size: int, eos_ids: frozenset[int]) -> None:
        """Raises `InvalidRequestError` if an id is outside this vocabulary, or no token is left."""
        check_ids("stop_token_ids", self.stop_token_ids, size)
        check_ids("logit_bias", (token for token, _ in self.logit_bias), size)
        check_ids("allowed_token_ids", self.allowed_token_ids, size)
        if self.min_tokens and len(self.stop_token_ids) >= size - 1:
            raise wrong("stop_token_ids", "and min_tokens leave no token to sample")
        ends = self.stop_token_ids if self.ignore_eos else self.stop_token_ids | eos_ids
        if self.min_tokens and self.allowed_token_ids and ends.issuperset(self.allowed_token_ids):
            raise wrong("allowed_token_ids", "and min_tokens leave no token to sample")

    def effective(self, seed: int) -> dict[str, object]:
        """The values that decide the distribution, with defaults."""
        stated = {name: getattr(self, name) for name in _STATED}
        stated |= {"top_k": max(self.top_k, 0), "logit_bias": bool(self.logit_bias)}
        stated["allowed_token_ids"] = list(self.allowed_token_ids)
        return stated | {"seed": seed}

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """True if the logits depend on the tokens so far."""
        added = self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
        return added or self.repetition_penalty != 1.0

    @property
    def adjusted(self) -> bool:
        """True if the logits are changed before the temperature, apart from `min_tokens`."""
        return bool(self.logit_bias or self.allowed_token_ids) or self.penalised

    @property
    def filtered(self) -> bool:
        """True if only a part of the vocabulary can be drawn."""
        return not self.greedy and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)


_STATED = (
    *("temperature", "top_p", "min_p", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 0, math.inf),
    ("n", 1, 128),
    ("temperature", 0.0, 10.0),
    ("top_p", 0.0, 1.0),
    ("top_k", -1, math.inf),
    ("min_p", 0.0, 1.0),
    ("seed", -(2**63), 2**64 - 1),
    ("min_tokens", 0, math.inf),
    ("logprobs", 0, MAX_ALTERNATIVES),
    ("prompt_logprobs", 0, MAX_ALTERNATIVES),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.01, 100.0),  # logits divided by a smaller one overflow float32
    ("priority", -(2**31), 2**31 - 1),
)


def check_ids(field: str, ids: Iterable[int], size: int) -> None:
    """Raises `InvalidRequestError` if an id is outside a vocabulary of `size` tokens."""
    bad = next((i for i in ids if not 0 <= i < size), None)
    if bad is not None:
        message = f"{field}: token id {bad} is outside the vocabulary (0 to {size - 1})"
        raise InvalidRequestError(field, message)


def _check_range(field: str, value: float | None, low: float, high: float) -> None:
    # Also refuses NaN.
    if value is not None and not low <= value <= high:
        limit = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise wrong(field, f"must be {limit}, got {value}")


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise wrong(field, f"takes at most {most} entries, got {count}")


def token_budget(
    prompt_length: int, asked: int | None, context: int, field: str = "max_tokens", least: int = 1
) -> int:
    """Tokens that may be generated: as asked, or the rest of the context.

    Raises `InvalidRequestError` if the prompt is empty, or if less than `least` or more than the
    context holds is asked for.
    """
    _check_range(field, asked, least, math.inf)
    if prompt_length == 0:
        raise InvalidRequestError("prompt", "the prompt is empty: at least one token is needed")
    room = context - prompt_length
    if room < 1 or (asked is not None and asked > room):
        wanted = "" if asked is None else f" plus {field} ({asked})"
        msg = (
            f"This model's maximum context length is {context} tokens: the prompt "
            f"({prompt_length} tokens){wanted} does not fit. "
            "Please shorten the prompt or the completion."
        )
        raise InvalidRequestError("messages" if asked is None else field, msg)
    return room if asked is None else asked
