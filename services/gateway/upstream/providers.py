"""An endpoint that is not Reef's, as it answers users."""

import asyncio
import time

import orjson
import structlog

from reefcommon.config_sections import ModelEndpoint
from reefcommon.errors import BadConfig
from reefkit.recipes.endpoint import key_of
from services.gateway.domain.balance import Node
from services.gateway.domain.errors import ApiError, UpstreamFailed
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.form import begins_stream, is_answer
from services.gateway.domain.upstream_body import LIMIT, body_for
from services.gateway.upstream.answers import HttpAnswer, failed, unreadable
from services.gateway.upstream.engines import HEADERS, without_credentials
from services.gateway.upstream.pool import CannotConnectError, Pool

log = structlog.get_logger()

# The fault is of the address, the key, the name or the account, not of the request.
SETUP = frozenset({401, 402, 403, 404, 405, 407, 421, 426})
# Of the endpoint for all requests: those count for the breaker. A 500 or 404 may be about one
# request or route, and must not take the endpoint from all others.
COUNTED = frozenset({401, 402, 403, 407, 502, 503, 504, 529})


class Provider:
    """An entry of `models:` that users are answered by, with a circuit breaker of its own."""

    def __init__(
        self,
        name: str,
        entry: ModelEndpoint,
        key: str,
        *,
        connect_timeout_s: float = 2.0,
        max_answer_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self.name, self.entry = name, entry
        self.node = Node(without_credentials(entry.url))
        self.problem = ""
        self._renames = False
        self._limit_bytes = max_answer_bytes
        self._connect_timeout_s = connect_timeout_s
        self._use(key.encode())

    def _use(self, key: bytes) -> None:
        self._secret = key
        bearer = [(b"authorization", b"Bearer " + key)] if key else []
        self._pool = Pool(
            self.node.url if key else self.entry.url,
            [*HEADERS, *bearer],
            connect_timeout_s=self._connect_timeout_s,
            read_timeout_s=self.entry.timeout_s,
        )

    def close(self) -> None:
        self._pool.close()

    async def ask(self, exchange: Exchange) -> HttpAnswer:
        """Ask it. Its own errors are answers, unless they are about Reef's account.

        Raises:
            UpstreamFailed: it is away, too slow or set apart, refuses the account, or sends
                something else than an answer.
            ApiError: it has no such route (501).
        """
        if not exchange.path.startswith("/v1/"):
            words = f"The provider {self.name!r} has no such route."
            raise ApiError(501, words, code="not_offered")
        if not self.node.available(time.monotonic()):
            words = f"The provider {self.name!r} is set apart after failures; try again."
            raise UpstreamFailed(503, words, code="no_engine", retry_after_s=2)
        exchange.engine, exchange.model = self.node.url, self.entry.model
        exchange.provider = self.name
        until = asyncio.get_running_loop().time() + self.entry.timeout_s
        body, left_out = body_for(self.entry, exchange, renames=self._renames)
        answer = await self._post(exchange, body, until)
        if answer.status == 400 and not self._renames and await self._lacks_limit(answer):
            self._renames = True
            await answer.close(finished=True)
            body, left_out = body_for(self.entry, exchange, renames=True)
            answer = await self._post(exchange, body, until)
        if answer.status < 300:
            await self._check(exchange, answer, until)
        answer.headers.append((b"x-reef-upstream", self.name.encode()))
        if left_out:
            names = ",".join(left_out).encode("ascii", "replace")
            answer.headers.append((b"x-reef-left-out", names))
        return answer

    def row(self, now: float) -> dict[str, object]:
        """Return its row in `/reef/status`."""
        node = self.node
        return {
            "url": node.url,
            "provider": self.name,
            "in_flight": node.in_flight,
            "available": node.available(now),
            "in_rotation": True,
            "models": [self.entry.model],
            "context_tokens": None,
            "problem": self.problem,
        }

    async def _post(self, exchange: Exchange, body: bytes, until: float) -> HttpAnswer:
        node, pool, key = self.node, self._pool, self._secret
        node.in_flight += 1
        try:
            # Headers that come byte by byte are no silence.
            async with asyncio.timeout_at(until):
                connection = await pool.post(exchange.path.removeprefix("/v1"), body)
        except BaseException as error:
            node.in_flight -= 1
            if isinstance(error, OSError):
                node.failed(time.monotonic())
                away = isinstance(error, CannotConnectError)
                words = "cannot be reached" if away else "did not answer"
                cause = error.__cause__ if away else None
                found = failed(node, cause or error, f"The provider {self.name!r} {words}")
                self.problem = found.message
                raise found from error
            raise
        status = connection.status
        try:
            renewed = status in (401, 403) and await self._renewed(key)
        except BaseException:  # the client has gone
            connection.cut()
            node.in_flight -= 1
            raise
        if renewed:
            connection.cut()
            node.in_flight -= 1
            return await self._post(exchange, body, until)
        words = f"refuses Reef's account or address ({status})"
        words += f"; the operator looks at models.{self.name} in serve.yaml"
        odd = unreadable(connection)
        useless = words if status in SETUP else odd
        if status in COUNTED or odd:
            node.failed(time.monotonic())
        elif 300 <= status < 500 and useless is None:
            node.succeeded()
        if useless is None:
            self.problem = f"answers {status}" if status >= 500 or status == 429 else ""
            return HttpAnswer(connection, pool, node, limit_bytes=self._limit_bytes, secret=key)
        # Its body is not read: it may be a page of a proxy, an endless one, or name the key.
        connection.cut()
        node.in_flight -= 1
        self.problem = f"The provider {self.name!r} {useless}."
        log.warning("provider_refuses", provider=self.name, url=node.url, status=status)
        raise UpstreamFailed(502, self.problem, code="upstream_refused")

    async def _renewed(self, refused: bytes) -> bool:
        """Read the key's file again. Returns whether there is another key than the refused one."""
        if self.entry.key_file is None:
            return False
        try:
            key = (await asyncio.to_thread(key_of, self.name, self.entry)).encode()
        except BadConfig as error:
            log.warning("provider_key_unreadable", provider=self.name, reason=str(error))
            return False
        if key not in (refused, self._secret):  # else another request has taken it
            self._pool.close()
            self._use(key)
            log.info("provider_key_renewed", provider=self.name)
        return key != refused

    async def _check(self, exchange: Exchange, answer: HttpAnswer, until: float) -> None:
        """Raise UpstreamFailed if it is no answer: a page, an error, or nothing."""
        status, code, fault = 502, "upstream_invalid", "sent something else than an answer"
        try:
            async with asyncio.timeout_at(until):
                if answer.event_stream:
                    good = begins_stream(await answer.first_frame())
                else:
                    good = is_answer(exchange.api, await answer.read())
        except ValueError:
            good = False
        except TimeoutError:
            good, status, code = False, 504, "upstream_timeout"
            fault = f"had not answered after {self.entry.timeout_s:g} s"
        except BaseException:
            await answer.close(finished=False)
            raise
        if good:
            self.node.succeeded()
            return
        await answer.close(finished=False)
        self.node.failed(time.monotonic())
        self.problem = f"The provider {self.name!r} {fault}."
        log.warning("provider_without_answer", provider=self.name, url=self.node.url, reason=fault)
        raise UpstreamFailed(status, self.problem, code=code)

    async def _lacks_limit(self, answer: HttpAnswer) -> bool:
        # OpenAI's reasoning models call it otherwise.
        try:
            error = orjson.loads(await answer.read())["error"]
            unsupported = str(error.get("code", "")).startswith("unsupported_")
            return unsupported and error.get("param") == LIMIT
        except (ValueError, LookupError, TypeError, AttributeError):
            return False
