"""The state of an exchange between the engine's first byte and the client's last."""

from dataclasses import dataclass, field

from services.gateway.domain.assembly import Assembly
from services.gateway.ports import EngineAnswer


@dataclass(slots=True)
class Progress:
    """Filled as the exchange goes on."""

    answer: EngineAnswer | None = None
    assembly: Assembly | None = None
    streaming: bool = False  # status and headers of a stream were sent
    first_token_at: float | None = None
    finished: bool = False
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    tail: bytes = b""  # sent once the record is durable
    terminated: bool = False
    kept: bool = False
    asked_at: float = 0.0
    answered_at: float = 0.0
    streamed_bytes: int = 0

    def set_type(self, content_type: bytes) -> None:
        """State another content type than the node did."""
        others = [pair for pair in self.headers if pair[0] != b"content-type"]
        self.headers = [*others, (b"content-type", content_type)]
