"""The serving nodes over HTTP: exchanges, and a poll of each node's models."""

import asyncio
import time
from typing import Any

import orjson
import structlog
from yarl import URL

from services.gateway.domain.balance import Node, choose
from services.gateway.domain.errors import ApiError, UpstreamFailed, invalid_answer
from services.gateway.domain.exchange import Exchange
from services.gateway.ports import EngineAnswer
from services.gateway.upstream.answers import HttpAnswer, failed, useless
from services.gateway.upstream.pool import CannotConnectError, Pool

log = structlog.get_logger()

HEADERS = [
    (b"content-type", b"application/json"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"reef-gateway"),
]
_LIST_LIMITS: Any = {"timeout_s": 5.0, "max_bytes": 16 * 1024 * 1024}


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
        # a key and credentials in the URL exclude each other
        targets = [node.url for node in self.nodes] if api_key else urls
        self._max_answer_bytes = max_answer_bytes
        self._secret = api_key.encode()
        bearer = [(b"authorization", b"Bearer " + self._secret)] if api_key else []
        waits = {"connect_timeout_s": connect_timeout_s, "read_timeout_s": read_timeout_s}
        self._pools = {
            node.url: Pool(url, [*HEADERS, *bearer], **waits)
            for node, url in zip(self.nodes, targets, strict=True)
        }

    async def stop(self) -> None:
        """Close every connection."""
        for pool in self._pools.values():
            pool.close()
        await asyncio.sleep(0)  # a transport closes in the loop's next round

    async def open(self, exchange: Exchange) -> EngineAnswer:
        tried: set[str] = set()
        absent = False
        last: UpstreamFailed | None = None
        model, own = exchange.model, exchange.shard
        while node := choose(self.nodes, model, own, now=time.monotonic(), tried=tried):
            tried.add(node.url)
            exchange.engine = node.url
            try:
                answer = await self._ask(node, exchange)
            except CannotConnectError as error:
                last = failed(node, error.__cause__ or error, "The serving node cannot be reached")
                continue
            no_route = exchange.api == "embeddings" and answer.status in {404, 405}
            adapter = exchange.release.adapter if exchange.release is not None else None
            lacks_adapter = answer.status == 404 and adapter is not None
            if not (no_route or lacks_adapter):
                return answer
            await answer.read()
            await answer.close(finished=True)
            if no_route:
                raise ApiError(501, "The serving node offers no embeddings.", code="not_offered")
            node.lacking.add(model)  # until it next lists its models
            absent = True
        if absent:
            raise not_served(exchange)
        words = "Every serving node is set apart after failures; try again."
        raise last or UpstreamFailed(503, words, code="no_engine", retry_after_s=2)

    async def _ask(self, node: Node, exchange: Exchange) -> HttpAnswer:
        pool = self._pools[node.url]
        trace = exchange.traceparent.encode()
        more = ((b"traceparent", trace),) if trace else ()
        node.in_flight += 1
        try:
            connection = await pool.post(exchange.path, exchange.upstream, more)
        except BaseException as error:
            node.in_flight -= 1
            if isinstance(error, OSError):
                node.failed(time.monotonic())
                if not isinstance(error, CannotConnectError):
                    raise failed(node, error, "The serving node did not answer") from error
            raise
        node.succeeded()
        # its body is not read: it may be a page of a proxy, or an endless one
        words = useless(connection)
        if words is not None:
            connection.cut()
            node.in_flight -= 1
            raise invalid_answer(words)
        return HttpAnswer(
            connection, pool, node, limit_bytes=self._max_answer_bytes, secret=self._secret
        )

    async def poll(self) -> None:
        """Poll the models of every node."""
        await asyncio.gather(*(self._poll(node) for node in self.nodes))

    async def _poll(self, node: Node) -> None:
        try:
            _, body = await self._pools[node.url].get("/v1/models", **_LIST_LIMITS)
            rows = orjson.loads(body)["data"]
            names = [str(row["id"]) for row in rows]
            lengths = [row.get("max_model_len") for row in rows]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if node.models is not None:
                reason = repr(error)[:200]
                log.warning("engine_does_not_list_models", engine=node.url, reason=reason)
            node.models = None
            return
        if node.models is None:
            log.info("engine_listed_models", engine=node.url, models=len(names))
            node.succeeded()
        node.listed(names)
        node.context_tokens = min((n for n in lengths if type(n) is int and n > 0), default=None)

    def rows(self) -> list[dict[str, Any]]:
        """Return the nodes as `/reef/status` shows them."""
        now = time.monotonic()
        return [
            {
                "url": node.url,
                "in_flight": node.in_flight,
                "available": node.available(now),
                "in_rotation": not node.apart,
                "models": sorted(node.models) if node.models is not None else None,
                "context_tokens": node.context_tokens,
            }
            for node in self.nodes
        ]

    async def failure(self) -> str | None:
        """Return a reason if no node lists its models."""
        if any(node.models is not None for node in self.nodes):
            return None
        urls = ", ".join(node.url for node in self.nodes) or "REEF_ENGINE_URLS is empty"
        return f"no serving node answers /v1/models: {urls}"


def without_credentials(url: str) -> str:
    """Return a URL for logs, events, metrics and `/reef/status`."""
    return str(URL(url).with_user(None)) if "@" in url else url


def not_served(exchange: Exchange) -> ApiError:
    """409 or 503: no node has the adapter of the release."""
    assert exchange.release is not None
    release_id = exchange.release.release_id
    if exchange.pinned:
        words = f"Release {release_id} is not served any more: no serving node holds it."
        return ApiError(409, words, code="release_not_served", param="x-reef-release-id")
    words = f"No serving node holds release {release_id} at the moment; it is being loaded."
    return ApiError(503, words, code="release_not_served", retry_after_s=2)
