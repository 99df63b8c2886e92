"""Text out of token ids, piece by piece, never in the middle of a character."""

from collections.abc import Callable
from dataclasses import dataclass, field

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(slots=True)
class Detokenizer:
    """The pieces it gives, joined, equal `decode` of all ids: a piece ends only after a whole character.

    `decode` maps ids to text and skips special tokens.
    """

    decode: Callable[[list[int]], str]
    _open: list[int] = field(default_factory=list, init=False)

    def push(self, token_id: int) -> str:
        """The text that is certain after this token; often one token's, empty inside a character."""
        self._open.append(token_id)
        text = self.decode(self._open)
        if text.endswith(REPLACEMENT):
            return ""
        self._open.clear()
        return text

    def flush(self) -> str:
        """The text of an unfinished character, as replacement characters."""
        text = self.decode(self._open) if self._open else ""
        self._open.clear()
        return text
