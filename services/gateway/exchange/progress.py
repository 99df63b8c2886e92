"""How far one exchange has come."""

from dataclasses import dataclass, field

from services.gateway.domain.assembly import Assembly
from services.gateway.ports import EngineAnswer


@dataclass(slots=True)
class Progress:
    """Filled as the exchange goes on. `tail` is what the client still has to get once the record is durable."""

    answer: EngineAnswer | None = None
    assembly: Assembly | None = None
    first_token_at: float | None = None
    finished: bool = False
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    tail: bytes = b""
    terminated: bool = False
    kept: bool = False
    asked_at: float = 0.0
    answered_at: float = 0.0
    streamed_bytes: int = 0
