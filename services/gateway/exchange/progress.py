"""The state of an exchange between the engine's first byte and the client's last."""

from dataclasses import dataclass, field

from reefcommon.ids import new_record_id
from services.gateway.domain.assembly import Assembly
from services.gateway.domain.exchange import Exchange
from services.gateway.exchange.client import Outlet
from services.gateway.ports import EngineAnswer


@dataclass(slots=True)
class Progress:
    """Filled as the exchange goes on."""

    exchange: Exchange
    out: Outlet
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

    def answer_with(self, tail: bytes, content_type: bytes) -> None:
        """Answer with another body, of another type, than the node's."""
        others = [pair for pair in self.headers if pair[0] != b"content-type"]
        self.headers, self.tail = [*others, (b"content-type", content_type)], tail

    def free_receipt(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer with these headers, and leave a client's receipt to the attempt that succeeds."""
        if self.exchange.keyed:
            self.exchange.use_receipt(new_record_id(self.exchange.shard))
        self.headers = self.exchange.headers + headers
