"""The serving nodes over HTTP: one aiohttp session, kept-alive connections, and a look at each node every few seconds."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from io import BytesIO
from typing import Any

import aiohttp
import orjson
import structlog
from multidict import CIMultiDict
from yarl import URL

from services.gateway import metrics
from services.gateway.domain.balance import Node, choose
from services.gateway.domain.errors import ApiError
from services.gateway.domain.exchange import Exchange
from services.gateway.handlers import EngineAnswer, UpstreamFailed, answer_too_large, invalid_answer

log = structlog.get_logger()

_DROPPED = frozenset(
    {
        b"connection", b"content-length", b"content-encoding", b"date", b"keep-alive", b"proxy-authenticate", b"server", b"set-cookie",
        b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models")
_NAME = re.compile(rb"^[!#$%&'*+.^_`|~0-9a-z-]+$")  # RFC 9110, section 5.6.2, in lower case
_VALUE = re.compile(rb"^[\t\x20-\x7e\x80-\xff]*$")
KEEP_ALIVE_S = 4.0  # below uvicorn's 5 s, so that a node never closes a connection that is about to be used
DRAIN_S = 0.5
LARGE_BODY_BYTES = 1024 * 1024


class AiohttpAnswer:
    """EngineAnswer on an aiohttp response."""

    __slots__ = ("_limit_bytes", "_node", "_response", "_secret", "event_stream", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, node: Node, *, limit_bytes: int, secret: bytes) -> None:
        self._response = response
        self._node = node
        self._limit_bytes = limit_bytes
        self._secret = secret
        self.status = response.status
        self.headers = relayed(response.raw_headers)
        self.event_stream = response.content_type == "text/event-stream"

    async def read(self) -> bytes:
        """The whole body; an error's without Reef's own key, which some nodes repeat."""
        parts, size = [], 0
        try:
            async for part in self._response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > self._limit_bytes:
                    raise answer_too_large()
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            return whole.replace(self._secret, b"***") if self._secret and self.status >= 400 else whole
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._broken(error) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._broken(error) from error

    async def close(self, *, finished: bool) -> None:
        """Give the connection back once the body's end has come, else cut it."""
        self._node.in_flight -= 1
        response = self._response
        if finished and not response.content.at_eof():
            try:
                async with asyncio.timeout(DRAIN_S):
                    async for _ in response.content.iter_any():
                        pass
            except (aiohttp.ClientError, TimeoutError, OSError):
                finished = False
        if finished:
            response.release()
        else:
            response.close()

    def _broken(self, error: Exception) -> UpstreamFailed:
        self._node.failed(time.monotonic())
        return failed(self._node, error, "The serving node broke off its answer")


class AiohttpEngines:
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
        targets = [node.url for node in self.nodes] if api_key else urls  # a key and credentials in the URL do not go together
        self._urls = {(node.url, path): URL(url + path) for node, url in zip(self.nodes, targets, strict=True) for path in _PATHS}
        self._max_answer_bytes = max_answer_bytes
        self._secret = api_key.encode()
        self._headers = CIMultiDict({"content-type": "application/json", "accept-encoding": "identity"})
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=read_timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session. Needs the running loop."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
        )

    async def stop(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def open(self, exchange: Exchange) -> EngineAnswer:
        """Ask one node; another one only where it could not be connected to, or does not have the release's adapter."""
        tried: set[str] = set()
        absent = None
        last: UpstreamFailed | None = None
        while True:
            node = choose(self.nodes, model=exchange.model, affinity=exchange.shard, now=time.monotonic(), tried=tried)
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
            if answer.status == 404 and exchange.release is not None and exchange.release.adapter is not None:
                await answer.read()
                await answer.close(finished=True)
                node.lacking.add(exchange.model)
                absent = node
                continue
            return answer
        if absent is not None:
            raise not_served(exchange)
        raise last or UpstreamFailed("Every serving node is set apart after failures; try again in a moment.", status=503, code="no_engine")

    async def _ask(self, node: Node, x: Exchange) -> AiohttpAnswer:
        assert self._session is not None
        headers = self._headers
        if x.traceparent:
            headers = CIMultiDict(headers)
            headers["traceparent"] = x.traceparent
        node.in_flight += 1
        try:
            # a large body goes out in pieces: in one it would hold up everything else
            data = BytesIO(x.upstream) if len(x.upstream) > LARGE_BODY_BYTES else x.upstream
            response = await self._session.post(self._urls[node.url, x.path], data=data, headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            node.in_flight -= 1
            node.failed(time.monotonic())
            raise _CannotConnect(failed(node, error, "The serving node cannot be reached")) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            node.in_flight -= 1
            node.failed(time.monotonic())
            raise failed(node, error, "The serving node did not answer") from error
        except BaseException:
            node.in_flight -= 1
            raise
        node.succeeded()
        words = useless(response)
        if words is not None:
            response.close()
            node.in_flight -= 1
            raise invalid_answer(words)
        return AiohttpAnswer(response, node, limit_bytes=self._max_answer_bytes, secret=self._secret)

    async def look(self) -> None:
        """Ask every node what it serves."""
        await asyncio.gather(*(self._look_at(node) for node in self.nodes))

    async def _look_at(self, node: Node) -> None:
        assert self._session is not None
        try:
            async with self._session.get(
                self._urls[node.url, "/v1/models"],
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=5, sock_connect=2),
                allow_redirects=False,
            ) as response:
                body = orjson.loads(await response.read())
                names = [row["id"] for row in body["data"]]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
            if node.models is not None:
                log.warning("engine_does_not_list_models", engine=node.url, reason=repr(error)[:200])
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
                "models": sorted(node.models) if node.models is not None else None,
            }
            for node in self.nodes
        ]

    async def failure(self) -> str | None:
        """None where at least one node lists its models."""
        if any(node.models is not None for node in self.nodes):
            return None
        return f"no serving node answers /v1/models: {', '.join(node.url for node in self.nodes) or 'REEF_ENGINE_URLS is empty'}"


def relayed(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """A node's headers for the client: none of the connection's, none in Reef's name, none that would break the head of the answer."""
    lower = [(name.lower(), value) for name, value in headers]
    return [
        (name, value)
        for name, value in lower
        if name not in _DROPPED and not name.startswith(b"x-reef-") and _NAME.match(name) and _VALUE.match(value)
    ]


def useless(response: aiohttp.ClientResponse) -> str | None:
    """Why nothing of an answer can be relayed, as far as its head says."""
    if response.status in {401, 403}:
        return f"refused Reef's own credentials ({response.status}); the operator sets REEF_ENGINE_API_KEY"
    if response.headers.get("content-encoding", "identity").lower() not in {"identity", ""}:
        return "sent an encoded answer that nobody asked for"
    if not 200 <= response.status < 300 and not 400 <= response.status < 600:
        return f"answered with status {response.status}"
    return None


def without_credentials(url: str) -> str:
    """A URL as it may be shown: in logs, events, metrics and `/reef/status`."""
    return str(URL(url).with_user(None)) if "@" in url else url


class _CannotConnect(Exception):
    def __init__(self, failure: UpstreamFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


def failed(node: Node, error: Exception, words: str) -> UpstreamFailed:
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
        503, f"No serving node holds release {release_id} at the moment; it is being loaded.", code="release_not_served", retry_after_s=2
    )
