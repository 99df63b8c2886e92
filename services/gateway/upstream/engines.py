"""The serving nodes over HTTP: kept-alive connections for the exchanges, and a look at each node every few seconds."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import structlog
from yarl import URL

from services.gateway import metrics
from services.gateway.domain.balance import Node, choose
from services.gateway.domain.errors import ApiError
from services.gateway.domain.exchange import Exchange
from services.gateway.ports import EngineAnswer, UpstreamFailed, answer_too_large, invalid_answer
from services.gateway.upstream.pool import CannotConnectError, Pool
from services.gateway.upstream.wire import Connection, Headers

log = structlog.get_logger()

_DROPPED = frozenset(
    {
        b"connection", b"content-length", b"content-encoding", b"date", b"keep-alive", b"proxy-authenticate", b"server", b"set-cookie",
        b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110, section 5.6.2, in lower case
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
DRAIN_S = 0.5


class HttpAnswer:
    """EngineAnswer on a connection to a node."""

    __slots__ = (
        "_connection",
        "_limit_bytes",
        "_node",
        "_pool",
        "_secret",
        "event_stream",
        "headers",
        "status",
    )

    def __init__(
        self, connection: Connection, pool: Pool, node: Node, *, limit_bytes: int, secret: bytes
    ) -> None:
        self._connection = connection
        self._pool = pool
        self._node = node
        self._limit_bytes = limit_bytes
        self._secret = secret
        self.status = connection.status
        self.headers = relayed(connection.headers)
        self.event_stream = (
            value_of(connection.headers, b"content-type").partition(b";")[0].strip()
            == b"text/event-stream"
        )

    async def read(self) -> bytes:
        """The whole body; an error's without Reef's own key, which some nodes repeat."""
        parts, size = [], 0
        try:
            while part := await self._connection.some():
                parts.append(part)
                size += len(part)
                if size > self._limit_bytes:
                    raise answer_too_large()
        except OSError as error:
            raise self._broken(error) from error
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        return whole.replace(self._secret, b"***") if self._secret and self.status >= 400 else whole

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        try:
            while chunk := await self._connection.some():
                yield chunk
        except OSError as error:
            raise self._broken(error) from error

    async def close(self, *, finished: bool) -> None:
        """Give the connection back once the body's end has come, else cut it."""
        self._node.in_flight -= 1
        connection = self._connection
        if finished and not connection.ended:
            try:
                async with asyncio.timeout(DRAIN_S):
                    while await connection.some():
                        pass
            except OSError:
                finished = False
        if finished:
            self._pool.give_back(connection)
        else:
            connection.cut()

    def _broken(self, error: OSError) -> UpstreamFailed:
        self._node.failed(time.monotonic())
        return failed(self._node, error, "The serving node broke off its answer")


class HttpEngines:
    """Engines over HTTP."""

    def __init__(
        self,
        urls: tuple[str, ...],
        *,
        api_key: str = "",
        connect_timeout_s: float = 2.0,
        read_timeout_s: float = 600.0,
        max_answer_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self.nodes = [Node(without_credentials(url)) for url in urls]
        targets = (
            [node.url for node in self.nodes] if api_key else urls
        )  # a key and credentials in the URL do not go together
        self._max_answer_bytes = max_answer_bytes
        self._secret = api_key.encode()
        self._headers = {
            "content-type": "application/json",
            "accept": "*/*",
            "accept-encoding": "identity",
            "user-agent": "reef-gateway",
        }
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._lists = {
            node.url: URL(url + "/v1/models") for node, url in zip(self.nodes, targets, strict=True)
        }
        fixed = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        self._pools = {
            node.url: Pool(
                url, fixed, connect_timeout_s=connect_timeout_s, read_timeout_s=read_timeout_s
            )
            for node, url in zip(self.nodes, targets, strict=True)
        }
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session that looks at the nodes. Needs the running loop."""
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

    async def stop(self) -> None:
        """Close every connection."""
        for pool in self._pools.values():
            pool.close()
        if self._session is not None:
            await self._session.close()
        await asyncio.sleep(0)  # a transport closes in the loop's next round

    async def open(self, exchange: Exchange) -> EngineAnswer:
        """Ask one node; another one only where it could not be connected to, or does not have the release's adapter."""
        tried: set[str] = set()
        absent = None
        last: UpstreamFailed | None = None
        while True:
            node = choose(
                self.nodes,
                model=exchange.model,
                affinity=exchange.shard,
                now=time.monotonic(),
                tried=tried,
            )
            if node is None:
                break
            tried.add(node.url)
            exchange.engine = node.url
            try:
                answer = await self._ask(node, exchange)
            except _CannotConnect as error:
                last = error.failure
                continue
            if exchange.api == "embeddings" and answer.status in {404, 405}:
                await answer.read()
                await answer.close(finished=True)
                raise ApiError(501, "The serving node offers no embeddings.", code="not_offered")
            if (
                answer.status == 404
                and exchange.release is not None
                and exchange.release.adapter is not None
            ):
                await answer.read()
                await answer.close(finished=True)
                node.lacking.add(exchange.model)
                absent = node
                continue
            return answer
        if absent is not None:
            raise not_served(exchange)
        raise last or UpstreamFailed(
            "Every serving node is set apart after failures; try again in a moment.",
            status=503,
            code="no_engine",
        )

    async def _ask(self, node: Node, x: Exchange) -> HttpAnswer:
        pool = self._pools[node.url]
        more = ((b"traceparent", x.traceparent.encode()),) if x.traceparent else ()
        node.in_flight += 1
        try:
            connection = await pool.post(x.path, x.upstream, more)
        except CannotConnectError as error:
            node.in_flight -= 1
            node.failed(time.monotonic())
            raise _CannotConnect(
                failed(node, error.__cause__ or error, "The serving node cannot be reached")
            ) from error
        except OSError as error:
            node.in_flight -= 1
            node.failed(time.monotonic())
            raise failed(node, error, "The serving node did not answer") from error
        except BaseException:
            node.in_flight -= 1
            raise
        node.succeeded()
        words = useless(connection)
        if words is not None:
            connection.cut()
            node.in_flight -= 1
            raise invalid_answer(words)
        return HttpAnswer(
            connection, pool, node, limit_bytes=self._max_answer_bytes, secret=self._secret
        )

    async def look(self) -> None:
        """Ask every node what it serves."""
        await asyncio.gather(*(self._look_at(node) for node in self.nodes))

    async def _look_at(self, node: Node) -> None:
        assert self._session is not None
        try:
            async with self._session.get(
                self._lists[node.url],
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=5, sock_connect=2),
                allow_redirects=False,
            ) as response:
                body = orjson.loads(await response.read())
                names = [row["id"] for row in body["data"]]
        except (
            aiohttp.ClientError,
            TimeoutError,
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:
            if node.models is not None:
                log.warning(
                    "engine_does_not_list_models", engine=node.url, reason=repr(error)[:200]
                )
            node.models = None
            return
        if node.models is None:
            log.info("engine_listed_models", engine=node.url, models=len(names))
            node.succeeded()
        node.listed(names)

    async def watch(self, *, every_s: float = 2.0) -> None:
        """Look at the nodes for ever."""
        while True:
            await self.look()
            await asyncio.sleep(every_s)

    def rows(self) -> list[dict[str, Any]]:
        """What `/reef/status` shows of them."""
        now = time.monotonic()
        return [
            {
                "url": node.url,
                "in_flight": node.in_flight,
                "available": node.available(now),
                "in_rotation": not node.apart,
                "models": sorted(node.models) if node.models is not None else None,
            }
            for node in self.nodes
        ]

    async def failure(self) -> str | None:
        """None where at least one node lists its models."""
        if any(node.models is not None for node in self.nodes):
            return None
        return f"no serving node answers /v1/models: {', '.join(node.url for node in self.nodes) or 'REEF_ENGINE_URLS is empty'}"


def relayed(headers: Headers) -> list[tuple[bytes, bytes]]:
    """A node's headers, their names in lower case, for the client: none of the connection's, none in Reef's name, none that would break
    the head of the answer."""
    return [
        (name, value)
        for name, value in headers
        if name not in _DROPPED
        and not name.startswith(b"x-reef-")
        and _NAME.fullmatch(name)
        and _VALUE.fullmatch(value)
    ]


def value_of(headers: Headers, name: bytes) -> bytes:
    """The first value of a header, in lower case; empty where it is not there."""
    return next((value.lower() for found, value in headers if found == name), b"")


def useless(answer: Connection) -> str | None:
    """Why nothing of an answer can be relayed, as far as its head says."""
    if answer.status in {401, 403}:
        return f"refused Reef's own credentials ({answer.status}); the operator sets REEF_ENGINE_API_KEY"
    if value_of(answer.headers, b"content-encoding") not in {b"identity", b""}:
        return "sent an encoded answer that nobody asked for"
    if not 200 <= answer.status < 300 and not 400 <= answer.status < 600:
        return f"answered with status {answer.status}"
    return None


def without_credentials(url: str) -> str:
    """A URL as it may be shown: in logs, events, metrics and `/reef/status`."""
    return str(URL(url).with_user(None)) if "@" in url else url


class _CannotConnect(Exception):
    def __init__(self, failure: UpstreamFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


def failed(node: Node, error: BaseException, words: str) -> UpstreamFailed:
    """What the client is told of a node that broke: 504 for a timeout, else 502."""
    timed_out = isinstance(error, TimeoutError)
    metrics.ENGINE_ERRORS.labels(node.url, "timeout" if timed_out else type(error).__name__).inc()
    log.warning("engine_failed", engine=node.url, reason=repr(error)[:300])
    if timed_out:
        return UpstreamFailed(f"{words}: it timed out.", status=504, code="upstream_timeout")
    return UpstreamFailed(f"{words}.", status=502, code="upstream_failed")


def not_served(exchange: Exchange) -> ApiError:
    """No node has the adapter of the release."""
    assert exchange.release is not None
    release_id = exchange.release.release_id
    if exchange.pinned:
        return ApiError(
            409,
            f"Release {release_id} is not served any more: no serving node holds it.",
            code="release_not_served",
            param="x-reef-release-id",
        )
    return ApiError(
        503,
        f"No serving node holds release {release_id} at the moment; it is being loaded.",
        code="release_not_served",
        retry_after_s=2,
    )
