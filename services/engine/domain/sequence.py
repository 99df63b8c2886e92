"""A choice while it is generated."""

from collections.abc import Callable
from dataclasses import dataclass, field

from services.engine.domain.detokenize import Detokenizer
from services.engine.domain.draws import uniform
from services.engine.domain.outputs import Delta, TokenLogprob
from services.engine.domain.sampling import SamplingParams
from services.engine.domain.spans import VersionSpan, extend_spans
from services.engine.domain.stops import Finish, StopScanner, banned_tokens, finish_by_token


@dataclass(slots=True)
class SequenceState:
    """Turns sampled tokens into deltas and decides when the choice is complete."""

    index: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    eos_ids: frozenset[int]
    # Most tokens that prompt and answer may have together.
    max_length: int
    decode: Callable[[list[int]], str]
    seed: int
    # The choice's number among all choices of the HTTP request.
    stream: int = 0
    token_ids: list[int] = field(default_factory=list, init=False)
    spans: tuple[VersionSpan, ...] = field(default=(), init=False)
    _detokenizer: Detokenizer = field(init=False)
    _scanner: StopScanner = field(init=False)

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.decode)
        self._scanner = StopScanner(self.params.stop)

    @property
    def draw(self) -> float:
        """The random number for the next token."""
        # It changes only when a token is accepted, so that a step may be tried again.
        return uniform(self.seed, self.stream, len(self.token_ids))

    @property
    def last_position(self) -> int:
        """Position of the newest token in prompt and answer."""
        return len(self.prompt_ids) + len(self.token_ids) - 1

    @property
    def banned(self) -> frozenset[int]:
        """Ids that must not be drawn next."""
        return banned_tokens(self.params, self.eos_ids, len(self.token_ids))

    def accept(self, token: TokenLogprob, version: str) -> Delta:
        """The delta of a sampled token, with a finish reason if complete."""
        self.token_ids.append(token.token_id)
        self.spans = extend_spans(self.spans, version)
        sampled = len(self.token_ids)
        room = self.max_length - len(self.prompt_ids) - sampled
        finish = finish_by_token(self.params, self.eos_ids, token.token_id, sampled, room)
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
