"""A choice while it is generated."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from services.engine.domain.detokenize import Detokenizer
from services.engine.domain.draws import uniform
from services.engine.domain.outputs import Delta, TokenLogprob
from services.engine.domain.sampling import SamplingParams
from services.engine.domain.spans import VersionSpan, extend_spans
from services.engine.domain.stops import Finish, StopScanner, banned_tokens, finish_by_token
from services.engine.domain.work import Work


@dataclass(frozen=True, slots=True)
class TextRules:
    """Rules of text and length that all sequences share."""

    eos_ids: frozenset[int]
    # Most tokens that prompt and answer may have together.
    max_length: int
    decode: Callable[[list[int]], str]


@dataclass(slots=True, eq=False)
class SequenceState:
    """Turns sampled tokens into deltas and decides when the choice is complete."""

    work: Work
    index: int
    rules: TextRules
    token_ids: list[int] = field(default_factory=list, init=False)
    spans: tuple[VersionSpan, ...] = field(default=(), init=False)
    _detokenizer: Detokenizer = field(init=False)
    _scanner: StopScanner = field(init=False)

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.rules.decode)
        self._scanner = StopScanner(self.params.stop)

    @property
    def params(self) -> SamplingParams:
        return self.work.params

    @property
    def draw(self) -> float:
        """The random number in [0, 1) for the next token. No other row can change it."""
        # It changes only when a token is accepted, so that a step may be tried again.
        stream = self.work.first_stream + self.index
        return uniform(self.work.seed, stream, len(self.token_ids))

    @property
    def last_position(self) -> int:
        """Position of the newest token in prompt and answer."""
        return len(self.work.prompt_ids) + len(self.token_ids) - 1

    @property
    def banned(self) -> frozenset[int]:
        """Ids that must not be drawn next."""
        return banned_tokens(self.params, self.rules.eos_ids, len(self.token_ids))

    def accept(self, token: TokenLogprob, version: str) -> Delta:
        """The delta of a sampled token, with a finish reason if complete.

        Raises RuntimeError if its log-probability is NaN.
        """
        if math.isnan(token.logprob):
            served = "the base model" if self.work.adapter is None else self.work.adapter.name
            wrong = "give no probabilities: they are not finite, or overflow"
            raise RuntimeError(f"the weights of {served} {wrong}")
        self.token_ids.append(token.token_id)
        self.spans = extend_spans(self.spans, version)
        sampled = len(self.token_ids)
        room = self.rules.max_length - len(self.work.prompt_ids) - sampled
        finish = finish_by_token(self.params, self.rules.eos_ids, token.token_id, sampled, room)
        text, finish = self._text(token.token_id, finish)
        return self._delta(text, (token,), version, finish)

    def ended(self, reason: str, version: str) -> Delta:
        """A last delta without a token."""
        text = self._detokenizer.flush() + self._scanner.flush()
        return self._delta(text, (), version, Finish(reason))

    def _text(self, token_id: int, finish: Finish | None) -> tuple[str, Finish | None]:
        armed = len(self.token_ids) >= self.params.min_tokens
        # A token that ends the answer by itself (EOS, stop_token_ids) is no part of its text.
        stopped = finish is not None and finish.reason == "stop"
        piece = "" if stopped else self._detokenizer.push(token_id)
        if finish is not None:
            piece = piece or self._detokenizer.flush()
        text, hit = self._scanner.push(piece, armed=armed)
        if hit is not None:
            return text, Finish("stop", hit)
        return (text, None) if finish is None else (text + self._scanner.flush(), finish)

    def _delta(
        self, text: str, tokens: tuple[TokenLogprob, ...], version: str, finish: Finish | None
    ) -> Delta:
        if finish is None:
            return Delta(self.index, text, tokens, version)
        return Delta(self.index, text, tokens, version, finish.reason, finish.detail, self.spans)
