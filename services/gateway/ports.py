"""The outside systems of the gateway."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from reefcommon.errors import ReefError
from reefcommon.events import (
    BodyRef,
    CandidateProposed,
    HoldRequested,
    PromoteRequested,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    ScenarioCreateRequested,
    ScenarioHeld,
)
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.keys import KeyEntry
from services.gateway.domain.log_event import LogEvent

News = ReleasePublished | ReleaseRejected | ScenarioHeld
Command = (
    ScenarioCreateRequested
    | RollbackRequested
    | PromoteRequested
    | HoldRequested
    | CandidateProposed
)


class NotDurable(ReefError):
    """The log did not acknowledge in time. It may hold the event: give no receipt."""


class RecordLog(Protocol):
    """Makes events durable, in order within a shard."""

    async def append(self, event: LogEvent) -> None:
        """Return when the event is durable. Raises NotDurable."""

    async def failure(self) -> str | None:
        """The reason if it cannot take events, now or soon."""

    def refusal(self) -> str | None:
        """The reason to refuse new work. None if its event has room."""

    def waiting_since(self) -> float | None:
        """The time of the oldest event that the broker lacks; None if it has all."""


class BodyStore(Protocol):
    """Keeps bodies too large for the log."""

    async def keep(self, body: bytes) -> BodyRef:
        """Return when the body is durable. Raises OSError."""


class EngineAnswer(Protocol):
    """An answer as it arrives. The caller must call `close`."""

    status: int
    headers: list[tuple[bytes, bytes]]
    event_stream: bool

    async def read(self) -> bytes:
        """The whole body. Raises UpstreamFailed."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces of any size. Raises UpstreamFailed."""

    async def close(self, *, finished: bool) -> None:
        """Give the connection back. If not finished, cut it, so that the node stops generating."""


class Engines(Protocol):
    """The serving nodes."""

    async def open(self, exchange: Exchange) -> EngineAnswer:
        """Ask a node, or another if it cannot be connected to.

        Raises:
            UpstreamFailed: no node answered.
            ApiError: no node has the release (409, 503), or the route (501).
        """

    def rows(self) -> list[dict[str, Any]]:
        """The nodes as `/reef/status` shows them."""


class KeyStore(Protocol):
    """Idempotency keys, shared by all gateways. All calls raise Unavailable if it is away."""

    async def claim(self, key: str, entry: KeyEntry, *, lease_s: float) -> KeyEntry | None:
        """Take the key for `lease_s` seconds, unless it is done or its work goes on.

        Returns its entry before. The key was taken if that is None (unknown), `free` or `unsure`.
        An `open` entry whose lease has run out is returned as `unsure`.
        """

    async def renew(self, key: str, entry: KeyEntry, *, lease_s: float) -> bool:
        """Extend the lease, also of a lost key. False if it is another's."""

    async def complete(self, key: str, entry: KeyEntry) -> None:
        """Keep the outcome for the time to live."""

    async def forget(self, key: str) -> None:
        """Undo a claim of an unknown key."""

    async def find(self, key: str) -> KeyEntry | None:
        """The entry, unless it is free."""

    async def since(self) -> float:
        """The Unix time since which the store knows every used key."""


FindRecorded = Callable[[str, float | None], Awaitable[dict[str, Any] | None]]
"""Returns the record or report with an id; None if there certainly is none. Waits for some seconds.

The second argument is the end of the work under this key, if known. Raises ApiError if the answer
is not known then.
"""


class Reads(Protocol):
    """The experience service's reads."""

    async def get(
        self, path: str, query: dict[str, str] | None = None, *, timeout_s: float = 10.0
    ) -> tuple[int, bytes]:
        """Status and JSON. Raises Unavailable."""


class CommandBus(Protocol):
    """Sends commands."""

    async def submit(self, command: Command, *, timeout_s: float) -> News:
        """The release event that names this command or candidate.

        Raises TimeoutError, NotDurable.
        """
