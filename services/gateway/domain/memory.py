"""Request memory: each request is charged with its body and the engine's copy."""

from dataclasses import dataclass

from services.gateway.domain.errors import ApiError

# A decoded body can be 27 times as large (`[],[],`): none is kept while an exchange waits.
# Reports and commands keep theirs; its size is estimated.
COPIES = 2  # what came, and what the engine gets
SMALL_BYTES = 64 * 1024  # below this a decoded body is too small to be looked at
# bytes beside the text itself, measured with orjson on CPython 3.11
_COSTS = {b",": 40, b"[": 72, b"{": 130, b":": 30, b'"': 13}
_MOST = max(_COSTS.values())  # a byte


def decoded_bytes(raw: bytes) -> int:
    """Return an upper estimate of the memory of `raw` decoded; 0 if it is small."""
    if len(raw) < SMALL_BYTES:
        return 0
    return sum(cost * raw.count(mark) for mark, cost in _COSTS.items())


@dataclass(slots=True)
class Memory:
    """The budget of all requests, and the bytes in use."""

    limit: int
    held: int = 0

    def check(self, size: int) -> None:
        """Raise ApiError (503, 413) if `size` bytes more have no room."""
        if self.held + size > self.limit:
            raise self.refusal(size)

    def check_decoding(self, raw: bytes) -> None:
        """Raise ApiError (413) if the body could not be decoded even alone. Charges no bytes."""
        if len(raw) * _MOST > self.limit and (size := decoded_bytes(raw)) > self.limit:
            raise self.refusal(size)

    def refusal(self, size: int) -> ApiError:
        """Return 413 if `size` bytes never fit, else 503."""
        if size > self.limit:
            words = (
                f"The request takes about {size} bytes of memory, and the gateway may use "
                f"{self.limit} (memory_budget_bytes)."
            )
            return ApiError(413, words, code="body_too_large")
        words = "Too many large requests are under way; try again in a moment."
        return ApiError(503, words, code="memory_budget", retry_after_s=1)


@dataclass(slots=True)
class Charge:
    """A request's part of the budget."""

    memory: Memory
    size: int = 0

    def to(self, size: int) -> None:
        """Set the charge. Without room raise ApiError (503, 413) and leave it as it is."""
        memory = self.memory
        held = memory.held + size - self.size
        if held > memory.limit:
            raise memory.refusal(size)
        memory.held = held
        self.size = size

    def moved(self) -> "Charge":
        """Move the charge to a new owner and return it."""
        other = Charge(self.memory, self.size)
        self.size = 0
        return other

    def end(self) -> None:
        self.memory.held -= self.size
        self.size = 0
