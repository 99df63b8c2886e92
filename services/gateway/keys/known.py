"""What is known of a key beyond the ledger: the log, as the experience service has it.

The ledger notes every key that is asked for since a moment that it can name (when it began, or lost its memory). Of a key without a
note the store says "unknown" once it has handled everything before that moment; of one with a note, whose work came to nothing that
anybody knows of (its gateway was killed, or the log did not confirm), once it has handled everything until now. Where nobody can say, the
answer is 503: a second record under one receipt could never be taken back. A ledger that has been there since the log was empty knows for
ever which keys are new, so that most are taken while the store is away.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from reefcommon.errors import Unavailable
from services.gateway.domain.errors import ApiError
from services.gateway.ports import KeyStore, Reads

log = structlog.get_logger()

WAIT_S = 2.0
SPREAD_S = 2.0  # clocks of gateways, and the time between two renewals and their effect


@dataclass(frozen=True, slots=True)
class Keys:
    """Looks a key up where the ledger does not know it. `waiting_since`: the time of the oldest event in this gateway's spool, if any."""

    ledger: KeyStore
    reads: Reads
    renewed_every_s: float
    waiting_since: Callable[[], float | None] = lambda: None

    async def find(self, key: str) -> dict[str, Any] | None:
        """The record or report with this id, as the experience service gives it; None: there is none.

        Raises:
            ApiError: 503, where that cannot be said for certain now.
        """
        try:
            asked_at = time.time()
            known = await self.ledger.note(key)
            if known == "new":
                return None
            since, began = await self.ledger.since()
            until = began if known == "unseen" else asked_at
            asked = {"until": repr(until), "began": repr(began), "wait_s": str(WAIT_S)}
            status, body = await self.reads.get(f"/keys/{key}", asked, timeout_s=WAIT_S + 3.0)
        except Unavailable as error:
            log.warning("key_not_looked_up", reason=str(error))
            raise unsure() from None
        found: dict[str, Any] = orjson.loads(body) if status in {200, 404} else {}
        if status == 200:
            return found
        if not found.get("complete"):
            raise unsure()
        if found.get("whole"):
            await self._whole()
        spooled = self.waiting_since()
        if spooled is not None and spooled <= until:
            raise unsure()
        # What was under way elsewhere when the ledger lost its memory is noted there again when its work is next renewed.
        if not found.get("empty") and time.time() - since < self.renewed_every_s + SPREAD_S:
            raise unsure()
        return None

    async def _whole(self) -> None:
        if self.waiting_since() is None:
            try:
                await self.ledger.call_whole()
            except Unavailable as error:
                log.warning("ledger_unavailable", reason=str(error))


def unsure() -> ApiError:
    """Nobody can say whether this key was used."""
    return ApiError(
        503,
        "Whether this key was used before cannot be said at the moment; send the request again in a moment, or without a key.",
        code="keys_unavailable",
        retry_after_s=2,
    )
