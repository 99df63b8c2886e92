"""Text out of token ids, never cut inside a character."""

from collections.abc import Callable
from dataclasses import dataclass, field

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MOST_OPEN = 16


@dataclass(slots=True)
class Detokenizer:
    """Gives text token by token; the joined pieces equal `decode` of all ids."""

    decode: Callable[[list[int]], str]
    _open: list[int] = field(default_factory=list, init=False)
    # The tokens of the latest text: many decoders drop the space before the first token.
    _before: list[int] = field(default_factory=list, init=False)
    _shown: str = field(default="", init=False)

    def push(self, token_id: int) -> str:
        """The text that is certain after this token; empty inside a character."""
        self._open.append(token_id)
        text = self._text()
        if not text.endswith(REPLACEMENT):
            return self._take(text)
        if len(self._open) < MOST_OPEN:
            return ""
        # No character is so long: of these only the last three tokens may be the beginning of one.
        # Decoding all that are open for each token takes seconds for some thousand.
        last, self._open = self._open[-3:], self._open[:-3]
        settled = self._text()
        shown = self._take(settled) if text.startswith(settled) else ""
        self._open += last
        return shown

    def flush(self) -> str:
        """The rest, an unfinished character, as replacement characters."""
        return self._take(self._text()) if self._open else ""

    def _text(self) -> str:
        return self.decode(self._before + self._open)[len(self._shown) :]

    def _take(self, text: str) -> str:
        if text or not self._shown:
            self._before = self._open if text else self._before + self._open
            self._shown = self.decode(self._before)
        self._open = []
        return text
