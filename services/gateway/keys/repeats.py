"""Idempotency keys: the same key and body get a single upstream call, record and answer.

The work goes on when its client leaves: the client may time out and ask again. Requests with the
same key in this process share an answer; across gateways the key store chooses the worker.
"""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from reefcommon.errors import Unavailable
from reefcommon.ids import time_ordered_hex
from services.gateway import metrics
from services.gateway.domain.errors import NOT_DURABLE, ApiError
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.keys import MAX_KEPT_ANSWER_BYTES, KeyEntry
from services.gateway.domain.remembered import entry_of
from services.gateway.exchange.client import Outlet
from services.gateway.exchange.inference import Inference, Watch
from services.gateway.keys.known import Keys, KeyUnsure, pause
from services.gateway.keys.lease import Lease, absence_logged
from services.gateway.keys.shared import SharedAnswer
from services.gateway.ports import KeyStore

log = structlog.get_logger()

POLL_S = 0.1
_HEADER = "x-reef-agent-record-id"


@dataclass(slots=True)
class Repeats:
    """Answers keyed exchanges."""

    inference: Inference
    store: KeyStore
    keys: Keys
    lease_s: float
    wait_s: float
    _running: dict[str, SharedAnswer] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def answer(self, exchange: Exchange, out: Outlet, watch: Watch) -> None:
        """Answer a keyed exchange: do it, join it, or send its kept answer.

        Raises ApiError, ClientGone.
        """
        async with watch:
            shared = await self._shared(exchange)
            if isinstance(shared, KeyEntry):
                await _replay(shared, out)
                return
            try:
                await shared.follow(out)
            finally:
                shared.without(exchange)

    async def _shared(self, exchange: Exchange) -> SharedAnswer | KeyEntry:
        assert exchange.digest is not None
        scenario, shard, owner = exchange.scenario, exchange.shard, time_ordered_hex()
        entry = KeyEntry(exchange.digest, "inference", scenario, shard, owner=owner)
        deadline = asyncio.get_running_loop().time() + self.wait_s
        while True:
            running = self._running.get(exchange.record_id)
            if running is not None:
                _same(running.exchange.digest, exchange)
                if await asyncio.shield(running.decided):
                    metrics.REPEATS.inc()
                    return running
            else:
                existing = await self._try(exchange, entry)
                if isinstance(existing, SharedAnswer):
                    return existing
                _same(existing.digest if existing.kind == "inference" else None, exchange)
                if existing.state == "done":
                    metrics.REPEATS.inc()
                    return existing
            if asyncio.get_running_loop().time() > deadline:
                words = f"The exchange {exchange.record_id!r} is still under way."
                raise ApiError(503, words, code="in_progress", retry_after_s=5)
            await asyncio.sleep(POLL_S)

    async def _try(self, exchange: Exchange, entry: KeyEntry) -> SharedAnswer | KeyEntry:
        key, shared, mine = exchange.record_id, SharedAnswer(exchange), False
        until = asyncio.get_running_loop().time() + self.lease_s
        # before the first await: the next request in this process joins
        self._running[key] = shared
        try:
            existing = await self._claim(exchange, entry)
            mine = existing is None
        finally:
            shared.decided.set_result(mine)
            if not mine:
                del self._running[key]
        if existing is not None:
            return existing
        lease = Lease(self.store, key, entry, self.lease_s, until)
        exchange.still_mine = lease.held
        task = asyncio.get_running_loop().create_task(self._work(exchange, shared, lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return shared

    async def _claim(self, exchange: Exchange, entry: KeyEntry) -> KeyEntry | None:
        key = exchange.record_id
        deadline = self.keys.deadline()
        while True:
            try:
                before = await self.store.claim(key, entry, lease_s=self.lease_s)
            except Unavailable as error:
                log.warning("key_store_unavailable", key=key, reason=str(error))
                words = "Idempotency keys cannot be kept at the moment; send the request without"
                raise ApiError(
                    503, f"{words} one, or later.", code="keys_unavailable", retry_after_s=2
                ) from None
            if before is not None and before.state != "unsure":
                return None if before.state == "free" else before
            ended_at = before.ended_at if before is not None else None
            try:
                found = await self.keys.look_up(key, ended_at)
            except KeyUnsure as error:
                await self._undo(key, entry, ended_at)
                await pause(error, deadline)
            else:
                if found is None:
                    return None
                return await self._recorded(exchange, entry, ended_at, found)

    async def _recorded(
        self, exchange: Exchange, entry: KeyEntry, ended_at: float | None, found: dict[str, Any]
    ) -> KeyEntry:
        key, recorded = exchange.record_id, entry_of(found, exchange)
        aborted = found.get("outcome") == "aborted" and recorded.digest == exchange.digest
        if recorded.answer is not None and not aborted:
            await self._remember(key, recorded)
            return recorded
        await self._undo(key, entry, ended_at)
        if aborted:
            words = f"The exchange {key!r} was cut off when its gateway stopped, and is recorded so"
            raise ApiError(
                409, f"{words}; use another receipt.", code="exchange_aborted", param=_HEADER
            )
        return recorded

    async def _undo(self, key: str, entry: KeyEntry, ended_at: float | None) -> None:
        # No work was begun under the key.
        if ended_at is not None:
            await self._remember(key, replace(entry, state="unsure", ended_at=ended_at))
            return
        with absence_logged(key):
            await self.store.forget(key)

    async def _work(self, exchange: Exchange, shared: SharedAnswer, lease: Lease) -> None:
        renewal = asyncio.get_running_loop().create_task(lease.keep())
        try:
            outcome = await self.inference.answer(exchange, shared, nullcontext())
            await self._settle(outcome, shared, lease)
        except ApiError as error:
            shared.fail(error)
            await lease.give_up(unrecorded=error.code != NOT_DURABLE)
        finally:
            renewal.cancel()
            if shared.charge is not None:
                shared.charge.end()
            if not shared.ended:
                words = "The exchange was interrupted; try again."
                shared.fail(ApiError(503, words, code="no_answer", retry_after_s=1))
            self._running.pop(lease.key, None)

    async def _settle(self, outcome: str, shared: SharedAnswer, lease: Lease) -> None:
        if outcome == "unrecorded" or (
            outcome == "failed" and (shared.status == 429 or shared.status >= 500)
        ):
            await lease.give_up(unrecorded=outcome == "failed")
            return
        answer = b"".join(shared.parts)
        done = replace(
            lease.entry,
            state="done",
            status=shared.status,
            headers=tuple(shared.headers),
            answer=answer if len(answer) <= MAX_KEPT_ANSWER_BYTES else None,
        )
        await self._remember(lease.key, done)

    async def _remember(self, key: str, entry: KeyEntry) -> None:
        with absence_logged(key):
            await self.store.complete(key, entry)

    async def drain(self, until: float) -> int:
        """Wait for exchanges until a time of the loop, then cut off the rest; return how many."""
        if not self._tasks:
            return 0
        wait_s = max(0.0, until - asyncio.get_running_loop().time())
        _, left = await asyncio.wait(self._tasks, timeout=wait_s)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return len(left)


def _same(digest: str | None, exchange: Exchange) -> None:
    if digest != exchange.digest:
        words = f"The receipt {exchange.record_id!r} was used before with another body."
        raise ApiError(409, words, code="id_conflict", param=_HEADER)


async def _replay(entry: KeyEntry, out: Outlet) -> None:
    if entry.answer is None:
        words = "The exchange was carried out, but its answer is too large to be kept"
        raise ApiError(409, f"{words}; read it under /reef/records.", code="answer_not_kept")
    await out.start(entry.status, list(entry.headers))
    await out.write(entry.answer, more=False)
