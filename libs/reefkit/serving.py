"""A serving node, as the rest of Reef sees it: vLLM's HTTP surface, which the embedded engine speaks too.

The gateway has its own raw path for live traffic; this port is for control (adapters, weights) and for evaluation episodes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import orjson

from reefcommon.errors import Poison, Transient, Unavailable


@dataclass(frozen=True, slots=True)
class Answer:
    """One generated choice. `token_ids` and `logprobs` have equal length where the node gives them."""

    text: str
    model: str
    finish_reason: str | None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    message: dict[str, Any] = field(default_factory=dict)
    weight_version: str = ""
    """Of the weights that made the last token, where the node says it."""


@dataclass(frozen=True, slots=True)
class NodeWeights:
    """The base weights of a node. `tensors`: SHA-256 of each tensor's float32 bytes by name, where asked for and stated."""

    version: str
    tensors: Mapping[str, str] = field(default_factory=dict)


class ServingNode(Protocol):
    """Control and episodes on one node. Raises Unavailable where it does not answer, Transient where it fails, Poison where it refuses."""

    url: str

    async def models(self) -> dict[str, str | None]:
        """Served names; for an adapter the path that it was loaded from, for a base model its root."""

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter. A repeat with the same name and path has no further effect."""

    async def unload_adapter(self, name: str) -> None:
        """Unload one. A name that is not loaded is fine; a refusal raises Transient with the node's own words."""

    async def chat(
        self,
        model: str,
        messages: list[dict[str, Any]],
        *,
        n: int = 1,
        timeout_s: float = 120.0,
        **params: Any,
    ) -> list[Answer]:
        """`n` answers of one model to one conversation."""

    async def prompt_logprobs(
        self, model: str, tokens: list[int], *, timeout_s: float = 120.0
    ) -> list[float]:
        """log p(tokens[i] | tokens[:i]) for i >= 1: length len(tokens) - 1."""


class WeightNode(ServingNode, Protocol):
    """A node whose base weights can be replaced while requests wait: pause, start, transfer, finish, resume. Errors as in ServingNode."""

    async def pause(self, *, timeout_s: float) -> None:
        """Make no further step; requests in flight and new ones wait. A repeat has no further effect."""

    async def resume(self, *, timeout_s: float) -> None:
        """Step again. A repeat has no further effect."""

    async def is_paused(self) -> bool:
        """Whether it makes no step. False where the node has no such route."""

    async def weights(self, *, tensors: bool = False, timeout_s: float = 10.0) -> NodeWeights:
        """What it serves. A node without the route serves what it was started with: version ""."""

    async def world_size(self) -> int:
        """How many ranks of a transfer the node takes."""

    async def meet(self, host: str, port: int, world_size: int, *, timeout_s: float) -> None:
        """Join the sender's process group as ranks 1 and up; the sender is rank 0 and hosts the store."""

    async def start_update(self, *, timeout_s: float) -> None:
        """Begin; what an unfinished update had brought is dropped."""

    async def update(self, info: Mapping[str, Any], *, timeout_s: float) -> None:
        """Take tensors: `weights_path` on a disk that the node sees, or `names`, `dtype_names` and `shapes` as they are broadcast."""

    async def finish_update(self, version: str, *, timeout_s: float) -> None:
        """Put in place what was brought, under this version."""

    async def reset_prefix_cache(self, *, timeout_s: float) -> None:
        """Forget keys and values of the old weights that later requests would use."""


class NotOffered(Poison):
    """The node has no such route."""


class HttpServingNode:
    """WeightNode over HTTP: the embedded engine, or vLLM 0.32 and newer with runtime LoRA updates allowed."""

    def __init__(self, url: str, session: aiohttp.ClientSession, *, api_key: str = "") -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def models(self) -> dict[str, str | None]:
        """Served names and where each comes from."""
        body = await self._call("GET", "/v1/models", timeout_s=10)
        with self._reading("/v1/models"):
            return {row["id"]: row.get("root") for row in body["data"]}

    async def load_adapter(self, name: str, path: str) -> None:
        """Load, unless the node holds that name from that path already."""
        if (await self.models()).get(name) == path:
            return
        try:
            await self._call(
                "POST",
                "/v1/load_lora_adapter",
                {"lora_name": name, "lora_path": path},
                timeout_s=120,
            )
        except Poison:
            if (await self.models()).get(name) != path:  # else somebody loaded the same meanwhile
                raise

    async def unload_adapter(self, name: str) -> None:
        """Unload, if it is there."""
        if name not in await self.models():
            return
        try:
            await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=60)
        except Poison as error:
            raise Transient(f"{self.url} refuses to unload {name}: {error}") from error

    async def chat(
        self,
        model: str,
        messages: list[dict[str, Any]],
        *,
        n: int = 1,
        timeout_s: float = 120.0,
        **params: Any,
    ) -> list[Answer]:
        """`n` answers of one model to one conversation."""
        body = await self._call(
            "POST",
            "/v1/chat/completions",
            {
                "model": model,
                "messages": messages,
                "n": n,
                "return_token_ids": True,
                "logprobs": True,
                **params,
            },
            timeout_s=timeout_s,
        )
        with self._reading("/v1/chat/completions"):
            return [
                Answer(
                    text=choice["message"].get("content") or "",
                    model=body.get("model", ""),
                    finish_reason=choice.get("finish_reason"),
                    token_ids=tuple(choice.get("token_ids") or ()),
                    logprobs=tuple(
                        item["logprob"]
                        for item in (choice.get("logprobs") or {}).get("content") or ()
                    ),
                    message=choice["message"],
                    weight_version=body.get("weight_version") or "",
                )
                for choice in body["choices"]
            ]

    async def prompt_logprobs(
        self, model: str, tokens: list[int], *, timeout_s: float = 120.0
    ) -> list[float]:
        """log p of each token after the first, under `model`."""
        body = await self._call(
            "POST",
            "/v1/completions",
            {
                "model": model,
                "prompt": tokens,
                "max_tokens": 1,
                "temperature": 0,
                "prompt_logprobs": 0,
            },
            timeout_s=timeout_s,
        )
        with self._reading("/v1/completions"):
            rows = body["choices"][0].get("prompt_logprobs")
            if not isinstance(rows, list) or len(rows) != len(tokens):
                raise Poison(f"{self.url} gave no prompt log-probabilities")
            return [
                row[str(token)]["logprob"] for row, token in zip(rows[1:], tokens[1:], strict=True)
            ]

    async def pause(self, *, timeout_s: float) -> None:
        """Freeze generation."""
        await self._call("POST", "/pause?mode=keep", timeout_s=timeout_s)

    async def resume(self, *, timeout_s: float) -> None:
        """Go on."""
        await self._call("POST", "/resume", timeout_s=timeout_s)

    async def is_paused(self) -> bool:
        """Whether generation is frozen."""
        try:
            body = await self._call("GET", "/is_paused", timeout_s=10)
        except NotOffered:
            return False
        return bool(body.get("is_paused"))

    async def weights(self, *, tensors: bool = False, timeout_s: float = 10.0) -> NodeWeights:
        """Version, and digests where the node states them."""
        query = "?checksum=false&tensors=true" if tensors else "?checksum=false"
        try:
            body = await self._call("GET", f"/weight_info{query}", timeout_s=timeout_s)
        except NotOffered:
            return NodeWeights("")
        return NodeWeights(str(body.get("weight_version") or ""), body.get("tensors") or {})

    async def world_size(self) -> int:
        """Ranks of this node."""
        return int((await self._call("GET", "/get_world_size", timeout_s=10))["world_size"])

    async def meet(self, host: str, port: int, world_size: int, *, timeout_s: float) -> None:
        """Join the sender."""
        info = {
            "master_address": host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": world_size,
        }
        await self._call(
            "POST", "/init_weight_transfer_engine", {"init_info": info}, timeout_s=timeout_s
        )

    async def start_update(self, *, timeout_s: float) -> None:
        """Begin."""
        await self._call("POST", "/start_weight_update", {}, timeout_s=timeout_s)

    async def update(self, info: Mapping[str, Any], *, timeout_s: float) -> None:
        """Take tensors."""
        await self._call(
            "POST", "/update_weights", {"update_info": dict(info)}, timeout_s=timeout_s
        )

    async def finish_update(self, version: str, *, timeout_s: float) -> None:
        """Put them in place."""
        await self._call(
            "POST", "/finish_weight_update", {"weight_version": version}, timeout_s=timeout_s
        )

    async def reset_prefix_cache(self, *, timeout_s: float) -> None:
        """Forget cached prefixes."""
        await self._call("POST", "/reset_prefix_cache", timeout_s=timeout_s)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        """A 200 with something else in it comes from a proxy, or from a node that is about to fail: it may be right the next time."""
        try:
            yield
        except (LookupError, TypeError, AttributeError) as error:
            raise Transient(
                f"serving node {self.url} answered {path} with what cannot be read: {error!r}"
            ) from error

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float
    ) -> Any:
        data = orjson.dumps(body) if body is not None else None
        headers = {**self._headers, "content-type": "application/json"}
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                text = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(
                f"serving node {self.url} does not answer {path}: {error!r}"
            ) from error
        if response.status >= 500 or response.status == 429:
            raise Transient(
                f"serving node {self.url} answered {response.status} to {path}: {text[:300]!r}"
            )
        if response.status in (404, 405) and method == "GET":
            raise NotOffered(f"serving node {self.url} has no route {path}")
        if response.status >= 400:
            raise Poison(
                f"serving node {self.url} refused {path} with {response.status}: {text[:300]!r}"
            )
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return {"text": text.decode(errors="replace")}
