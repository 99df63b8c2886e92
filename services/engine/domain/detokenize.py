"""Text out of token ids, never cut inside a character."""

from collections.abc import Callable
from dataclasses import dataclass, field

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(slots=True)
class Detokenizer:
    """Gives text token by token; the joined pieces equal `decode` of all ids."""

    decode: Callable[[list[int]], str]
    _open: list[int] = field(default_factory=list, init=False)

    def push(self, token_id: int) -> str:
        """The text that is certain after this token; empty inside a character."""
        self._open.append(token_id)
        text = self.decode(self._open)
        if text.endswith(REPLACEMENT):
            return ""
        self._open.clear()
        return text

    def flush(self) -> str:
        """The rest, an unfinished character, as replacement characters."""
        text = self.decode(self._open) if self._open else ""
        self._open.clear()
        return text
