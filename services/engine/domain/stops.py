"""The end of a choice, and the text that may be shown before it."""

from dataclasses import dataclass, field

from services.engine.domain.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Finish:
    """OpenAI's `finish_reason` (or `abort`) and vLLM's `stop_reason`."""

    reason: str
    detail: int | str | None = None


def finish_by_token(
    params: SamplingParams, eos_ids: frozenset[int], token_id: int, sampled: int, room: int
) -> Finish | None:
    """The end that this token brings, if any. `sampled` counts it; `room`: the context's rest."""
    if sampled >= params.min_tokens:
        if token_id in eos_ids and not params.ignore_eos:
            return Finish("stop")
        if token_id in params.stop_token_ids:
            return Finish("stop", token_id)
    if sampled >= params.max_tokens or room <= 0:
        return Finish("length")
    return None


def banned_tokens(params: SamplingParams, eos_ids: frozenset[int], sampled: int) -> frozenset[int]:
    """Ids that may not end the choice below `min_tokens`."""
    if sampled >= params.min_tokens:
        return frozenset()
    return params.stop_token_ids if params.ignore_eos else params.stop_token_ids | eos_ids


@dataclass(slots=True)
class StopScanner:
    """Passes text on up to a stop string; holds back its possible beginning."""

    stops: tuple[str, ...]
    _held: str = field(default="", init=False)

    def push(self, piece: str, *, armed: bool = True) -> tuple[str, str | None]:
        """The text to show, without the stop string, and the stop string that was met.

        While not `armed` (below min_tokens) text passes unsearched.
        """
        text = self._held + piece
        self._held = ""
        if not armed or not self.stops:
            return text, None
        hits = [(text.find(stop), stop) for stop in self.stops if stop in text]
        if hits:
            at, stop = min(hits)
            return text[:at], stop
        keep = max(overlap(text, stop) for stop in self.stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """The text that was held back."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - size :]):
            return size
    return 0
