"""Looks keys up in the log, as the experience service has it, if the key store has no answer.

Redis remembers used keys for a day, if it keeps its memory; work of an `unsure` key ended without a
result. The experience service has the answer once it has handled the log up to a fixed time. Until
then the answer is 503: a second record under a receipt could never be taken back.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from reefcommon.errors import Unavailable
from services.gateway.domain.errors import ApiError
from services.gateway.keys.lease import renewal_s
from services.gateway.ports import KeyStore, Reads

log = structlog.get_logger()

WAIT_S = 8.0  # how long a request waits for a service that is there but cannot say yet
STORE_WAIT_S = 2.0
POLL_S = 0.2
SPREAD_S = 2.0  # clocks of gateways, and the time between two renewals and their effect


class KeyUnsure(ApiError):
    """It is not known if this key was used. `soon`: it will be known soon."""

    def __init__(self, *, soon: bool) -> None:
        words = (
            "Whether this key was used before cannot be said at the moment; send the request"
            " again in a moment, or without a key."
        )
        super().__init__(503, words, code="keys_unavailable", retry_after_s=2)
        self.soon = soon


@dataclass(frozen=True, slots=True)
class Keys:
    """`waiting_since`: the time of the oldest event in this gateway's spool, if any."""

    store: KeyStore
    reads: Reads
    lease_s: float
    waiting_since: Callable[[], float | None] = lambda: None

    async def find(self, key: str, ended_at: float | None = None) -> dict[str, Any] | None:
        deadline = self.deadline()
        while True:
            try:
                return await self.look_up(key, ended_at)
            except KeyUnsure as error:
                await pause(error, deadline)

    def deadline(self) -> float:
        """When a request stops waiting, in the time of the event loop."""
        return asyncio.get_running_loop().time() + min(WAIT_S, self.lease_s / 3)

    async def look_up(self, key: str, ended_at: float | None) -> dict[str, Any] | None:
        """Return the record or report with this id; None if there certainly is none.

        ended_at: the end of the work under this key; None if the key store does not know the key.

        Raises:
            KeyUnsure: the answer is not known now.
        """
        try:
            since = await self.store.since()
            until = since if ended_at is None else ended_at
            wait_s = min(STORE_WAIT_S, self.lease_s / 3)
            query = {"until": repr(until), "wait_s": str(wait_s)}
            status, body = await self.reads.get(f"/keys/{key}", query, timeout_s=wait_s + 3.0)
        except Unavailable as error:
            log.warning("key_not_looked_up", reason=str(error))
            raise KeyUnsure(soon=False) from None
        answer: dict[str, Any] = orjson.loads(body) if status in {200, 404} else {}
        if status == 200:
            return answer
        spooled = self.waiting_since()
        if not answer.get("complete") or (spooled is not None and spooled <= until):
            raise KeyUnsure(soon=status == 404)
        # Work that was under way when Redis lost its memory takes its key again when it is renewed.
        if time.time() - since < renewal_s(self.lease_s) + SPREAD_S:
            raise KeyUnsure(soon=True)
        return None


async def pause(error: KeyUnsure, deadline: float) -> None:
    """Wait before the next look-up; raise `error` if there should be none."""
    if not error.soon or asyncio.get_running_loop().time() > deadline:
        raise error
    await asyncio.sleep(POLL_S)
