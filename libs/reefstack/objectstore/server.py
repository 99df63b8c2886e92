"""HTTP/1.1 in front of the store, and the group commit."""

# requests of one turn of the loop --> frames of all changes --> one fdatasync --> all answers
#
# The sync blocks the loop on purpose: a thread costs more CPU than the sync of a common disk, and
# the requests that come in meanwhile are the next group.

import asyncio
import fnmatch
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import NoReturn, cast

import httptools

from reefstack.objectstore.errors import NoRoom, Refused
from reefstack.objectstore.requests import Answer, Request, Requests, refusal
from reefstack.objectstore.store import Store

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 64 * 1024 * 1024
_RETRY_COMPACTION_S = 5.0


class Commits:
    """Does requests in their order, and answers changes after a sync."""

    def __init__(
        self, store: Store, requests: Requests, lazily: Sequence[str], within_s: float
    ) -> None:
        self._store, self._requests, self._within_s = store, requests, within_s
        # A change of such a key is answered before its sync. The log keeps the order: after a power
        # cut it can be missing only together with everything that came after it.
        self._lazily = re.compile("|".join(map(fnmatch.translate, lazily)) or "(?!)")
        self._loop = asyncio.get_running_loop()
        self._answers: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._compaction: asyncio.Task[None] | None = None

    def submit(self, request: Request, answer: Callable[[Answer], None]) -> None:
        """Do a request. `answer` is called once, now or in the next turn of the loop."""
        if request.method in ("GET", "HEAD"):
            if self._answers:  # what it would see is not on the disk yet
                self._answers.append(lambda: answer(self._done(request)))
            else:
                answer(self._done(request))
            return
        done = self._done(request)
        if done.status == 200 and self._lazily.match(request.path):
            if self._timer is None:
                self._timer = self._loop.call_later(self._within_s, self._commit)
            self._answers.append(lambda: answer(done)) if self._answers else answer(done)
            return
        if not self._answers:
            self._loop.call_soon(self._commit)
        self._answers.append(lambda: answer(done))

    def close(self) -> None:
        """Answer what is waiting, and close the store."""
        if self._compaction is not None:
            self._compaction.cancel()
        self._commit()
        self._store.close()

    def _done(self, request: Request) -> Answer:
        try:
            return self._requests.do(request)
        except Refused as error:
            return refusal(error)
        except ValueError as error:
            return refusal(Refused(400, "InvalidArgument", str(error)))
        except OSError as error:
            self._fail(error)

    def _commit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._store.sync()
        except OSError as error:
            self._fail(error)
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()
        if self._compaction is None and self._store.wasteful:
            self._compaction = self._loop.create_task(self._compact())

    async def _compact(self) -> None:
        try:
            await self._store.compact()
        except NoRoom as error:
            log.warning("compaction waits for room: %s", error)
            await asyncio.sleep(_RETRY_COMPACTION_S)
        except OSError as error:
            self._fail(error)
        finally:
            self._compaction = None

    def _fail(self, error: OSError) -> NoReturn:
        # After a failed sync the kernel may have dropped the pages: only the disk knows its state.
        log.critical("the disk fails, the log is read anew at the next start: %s", error)
        os._exit(1)


class Connection(asyncio.Protocol):
    """A client, which asks in sequence."""

    def __init__(self, commits: Commits, check: Callable[[Request], None]) -> None:
        self._commits, self._check = commits, check
        self._parser = httptools.HttpRequestParser(self)
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(400, "BadRequest", "this is no HTTP")

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > _MAX_BODY_BYTES:
            self._refuse(413, "EntityTooLarge", "the body is too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, query = self._target.decode("latin-1").partition("?")
        method = self._parser.get_method().decode()
        request = Request(method, path, query, self._headers, b"".join(self._body))
        self._begin()
        try:
            self._check(request)
        except Refused as error:
            self._answer(refusal(error))
        else:
            self._commits.submit(request, self._answer)

    def _answer(self, answer: Answer) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer.encode())

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._answer(refusal(Refused(status, code, message)))
        self._transport.close()
