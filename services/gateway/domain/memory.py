"""How much memory requests hold together: each is charged with its body and the engine's copy of it, from its first byte to its end.

Decoded bodies are much larger (`[],[],` 27 times), so nobody keeps one while an exchange waits: it is decoded, read and encoded again
in one go. Where one has to be kept (reports, commands), and to refuse what could never be decoded, its size is estimated.
"""

from dataclasses import dataclass

from services.gateway.domain.errors import ApiError

COPIES = 2  # what came, and what the engine gets
SMALL_BYTES = 64 * 1024  # below this a decoded body is too small to be looked at
_VALUE, _LIST, _OBJECT, _FIELD, _QUOTE = (
    40,
    72,
    130,
    30,
    13,
)  # bytes beside the text itself, measured with orjson on CPython 3.11
_MOST = _OBJECT  # a byte


def decoded_bytes(raw: bytes) -> int:
    """About what `raw` takes beside its text while it is decoded, rather more than less; 0 where that is little."""
    if len(raw) < SMALL_BYTES:
        return 0
    count = raw.count
    return (
        _VALUE * count(b",")
        + _LIST * count(b"[")
        + _OBJECT * count(b"{")
        + _FIELD * count(b":")
        + _QUOTE * count(b'"')
    )


@dataclass(slots=True)
class Memory:
    """What all requests may hold, and what they do."""

    limit: int
    held: int = 0

    def check(self, size: int) -> None:
        """Refuse `size` bytes more where there is no room. Raises ApiError (503, 413)."""
        if self.held + size > self.limit:
            raise self.refusal(size)

    def check_decoding(self, raw: bytes) -> None:
        """Refuse what could not be decoded if nothing else were held. One at a time is, so it is not charged. Raises ApiError (413)."""
        if len(raw) * _MOST > self.limit and (size := decoded_bytes(raw)) > self.limit:
            raise self.refusal(size)

    def refusal(self, size: int) -> ApiError:
        """What to say where `size` bytes do not fit: whether they ever will."""
        if size > self.limit:
            words = f"The request takes about {size} bytes of memory, and the gateway may use {self.limit} (memory_budget_bytes)."
            return ApiError(413, words, code="body_too_large")
        return ApiError(
            503,
            "Too many large requests are under way; try again in a moment.",
            code="memory_budget",
            retry_after_s=1,
        )


@dataclass(slots=True)
class Charge:
    """One request's part."""

    memory: Memory
    size: int = 0

    def to(self, size: int) -> None:
        """The request now holds `size` bytes. Raises ApiError (503, 413): there is no room, and nothing changed."""
        memory = self.memory
        held = memory.held + size - self.size
        if held > memory.limit:
            raise memory.refusal(size)
        memory.held = held
        self.size = size

    def moved(self) -> "Charge":
        """The same in other hands: this one holds nothing from now on."""
        other = Charge(self.memory, self.size)
        self.size = 0
        return other

    def end(self) -> None:
        """The request holds nothing any more."""
        self.memory.held -= self.size
        self.size = 0
