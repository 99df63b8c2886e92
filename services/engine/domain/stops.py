"""When a choice ends, and which text may be shown before that is known."""

from dataclasses import dataclass, field

from services.engine.domain.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Finish:
    """`reason` as OpenAI names it (`stop`, `length`), or `abort`; `detail` is vLLM's `stop_reason`."""

    reason: str
    detail: int | str | None = None


def finish_by_token(
    params: SamplingParams, eos_ids: frozenset[int], token_id: int, sampled: int, room: int
) -> Finish | None:
    """Does this token end the choice? `sampled` counts it; `room` is how many more the context can hold."""
    if sampled >= params.min_tokens:
        if token_id in eos_ids and not params.ignore_eos:
            return Finish("stop")
        if token_id in params.stop_token_ids:
            return Finish("stop", token_id)
    if sampled >= params.max_tokens or room <= 0:
        return Finish("length")
    return None


def banned_tokens(params: SamplingParams, eos_ids: frozenset[int], sampled: int) -> frozenset[int]:
    """Ids that must not be drawn next because fewer than `min_tokens` were sampled."""
    if sampled >= params.min_tokens:
        return frozenset()
    return params.stop_token_ids if params.ignore_eos else params.stop_token_ids | eos_ids


@dataclass(slots=True)
class StopScanner:
    """Lets text through up to a stop string; holds back what might be the start of one."""

    stops: tuple[str, ...]
    _held: str = field(default="", init=False)

    def push(self, piece: str, *, armed: bool = True) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string that was met, if any (it is not shown).

        While not `armed` (below min_tokens) text passes unsearched.
        """
        text = self._held + piece
        self._held = ""
        if not armed or not self.stops:
            return text, None
        found = [(text.find(stop), stop) for stop in self.stops if stop in text]
        if found:
            at, stop = min(found)
            return text[:at], stop
        keep = max(_overlap(text, stop) for stop in self.stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """What was held back, once no stop string can follow."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - size :]):
            return size
    return 0
