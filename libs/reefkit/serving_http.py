"""ServingNode and WeightNode over HTTP: the embedded engine, or vLLM 0.32 and newer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

import orjson

from reefcommon.errors import Poison, Slow, Transient, Unavailable, said
from reefcommon.serving import Answer, NodeWeights, NotOffered, WrongModel

if TYPE_CHECKING:
    import aiohttp


class HttpServingNode:
    """A node. vLLM needs `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`."""

    def __init__(
        self, url: str, session: "aiohttp.ClientSession | None" = None, *, api_key: str = ""
    ) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._no_priority = False
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def __str__(self) -> str:
        return f"serving node {self.url}"

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def models(self) -> dict[str, str | None]:
        body = await self._call("GET", "/v1/models", timeout_s=10)
        with self._reading("/v1/models"):
            return {row["id"]: row.get("root") for row in body["data"]}

    async def context_tokens(self) -> int | None:
        body = await self._call("GET", "/v1/models", timeout_s=10)
        with self._reading("/v1/models"):
            said = [row.get("max_model_len") for row in body["data"]]
            return min((n for n in said if type(n) is int and n > 0), default=None)

    async def load_adapter(self, name: str, path: str) -> None:
        if (await self.models()).get(name) == path:
            return
        adapter = {"lora_name": name, "lora_path": path}
        try:
            await self._call("POST", "/v1/load_lora_adapter", adapter, timeout_s=120)
        except (Poison, Transient) as error:
            # Another caller may have loaded the same adapter meanwhile.
            if (await self.models()).get(name) == path:
                return
            # vLLM answers 500 if its engine refuses an adapter (its rank, its modules).
            if "add_lora method failed" in str(error):
                raise Poison(str(error)) from error
            raise

    async def unload_adapter(self, name: str) -> None:
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
        path = "/v1/chat/completions"
        asked = {"model": model, "messages": messages, "n": n, **params}
        asked |= {"return_token_ids": True, "logprobs": True}
        body = await self._call("POST", path, asked, timeout_s=timeout_s)
        with self._reading(path):
            return [_answer(body, choice) for choice in body["choices"]]

    async def prompt_logprobs(
        self, model: str, tokens: list[int], *, priority: int = 0, timeout_s: float = 120.0
    ) -> list[float]:
        asked = {"model": model, "prompt": tokens, "prompt_logprobs": 0, "priority": priority}
        asked |= {"max_tokens": 1, "temperature": 0}
        body = await self._call("POST", "/v1/completions", asked, timeout_s=timeout_s)
        with self._reading("/v1/completions"):
            rows = body["choices"][0].get("prompt_logprobs")
            if not isinstance(rows, list) or len(rows) != len(tokens):
                raise Poison(f"{self.url} gave no prompt log-probabilities")
            later = zip(rows[1:], tokens[1:], strict=True)
            scores = [row[str(token)]["logprob"] for row, token in later]
            # A TypeError for null. Rounding in half precision may pass 0.
            if not all(-inf < score < 0.1 for score in scores):
                raise Poison(f"{self.url} gave numbers that are no log-probabilities")
            if (answered := body.get("model", model)) != model:
                raise WrongModel(f"{self.url}: {answered} answered instead of {model}")
            return scores

    async def pause(self, *, timeout_s: float) -> None:
        await self._call("POST", "/pause?mode=keep", timeout_s=timeout_s)

    async def resume(self, *, timeout_s: float) -> None:
        await self._call("POST", "/resume", timeout_s=timeout_s)

    async def is_paused(self) -> bool:
        try:
            body = await self._call("GET", "/is_paused", timeout_s=10)
        except NotOffered:
            return False
        with self._reading("/is_paused"):
            return bool(body.get("is_paused"))

    async def weights(self, *, tensors: bool = False, timeout_s: float = 10.0) -> NodeWeights:
        query = "?checksum=false&tensors=true" if tensors else "?checksum=false"
        try:
            body = await self._call("GET", f"/weight_info{query}", timeout_s=timeout_s)
        except NotOffered:
            return NodeWeights("")
        with self._reading("/weight_info"):
            version, digests = body.get("weight_version"), dict(body.get("tensors") or {})
            return NodeWeights(str(version or ""), digests)

    async def world_size(self) -> int:
        body = await self._call("GET", "/get_world_size", timeout_s=10)
        with self._reading("/get_world_size"):
            return int(body["world_size"])

    async def meet(self, host: str, port: int, world_size: int, *, timeout_s: float) -> None:
        info = {"master_address": host, "master_port": port, "world_size": world_size}
        body = {"init_info": info | {"rank_offset": 1}}
        await self._call("POST", "/init_weight_transfer_engine", body, timeout_s=timeout_s)

    async def start_update(self, *, timeout_s: float) -> None:
        await self._call("POST", "/start_weight_update", {}, timeout_s=timeout_s)

    async def update(self, info: Mapping[str, Any], *, timeout_s: float) -> None:
        body = {"update_info": dict(info)}
        await self._call("POST", "/update_weights", body, timeout_s=timeout_s)

    async def finish_update(self, version: str, *, timeout_s: float) -> None:
        body = {"weight_version": version}
        await self._call("POST", "/finish_weight_update", body, timeout_s=timeout_s)

    async def reset_prefix_cache(self, *, timeout_s: float) -> None:
        await self._call("POST", "/reset_prefix_cache", timeout_s=timeout_s)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"{path} with a body that cannot be read"
            raise Transient(f"{self} answered {what}: {error!r}") from error

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float
    ) -> Any:
        # Some servers refuse a priority. vLLM 0.32 takes it, and heeds it if it was told to.
        if body is not None and (self._no_priority or not body.get("priority")):
            body = {key: value for key, value in body.items() if key != "priority"}
        try:
            return await self._request(method, path, body, timeout_s=timeout_s)
        except Poison as error:
            if body is None or "priority" not in body or "riority" not in str(error):
                raise
        self._no_priority = True
        return await self._call(method, path, body, timeout_s=timeout_s)

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None, *, timeout_s: float
    ) -> Any:
        import aiohttp  # 0.15 s: the hosts have nodes, and seldom ask one

        data = orjson.dumps(body) if body is not None else None
        headers = {**self._headers, "content-type": "application/json"}
        limit = aiohttp.ClientTimeout(total=timeout_s)
        if self._session is None:  # made here, since a session needs a running event loop
            self._session = aiohttp.ClientSession()
        try:
            async with self._session.request(
                method, self.url + path, data=data, headers=headers, timeout=limit
            ) as response:
                text = await response.read()
        except TimeoutError as error:
            raise Slow(f"{self} did not answer {path} within {timeout_s:g} s") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"{self} does not answer {path}: {said(error)}") from error
        status = response.status
        if status >= 500 or status == 429:
            raise Transient(f"{self} answered {status} to {path}: {_said(text)}")
        if status in (404, 405) and method == "GET":
            raise NotOffered(f"{self} has no route {path}")
        if status >= 400:
            raise Poison(f"{self} refused {path} with {status}: {_said(text)}")
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return {"text": text.decode(errors="replace")}


def _said(body: bytes) -> str:
    """Return the words of a refusal in a line: its message, else its text."""
    words = body.decode(errors="replace")
    try:
        found = orjson.loads(body)
        words = str(found.get("error", found)["message"])
    except (AttributeError, LookupError, TypeError, orjson.JSONDecodeError):
        pass
    shown = "".join(char for char in " ".join(words.split()) if char.isprintable())
    return shown[:300] or "no words"


def _answer(body: dict[str, Any], choice: dict[str, Any]) -> Answer:
    logprobs = (choice.get("logprobs") or {}).get("content") or ()
    return Answer(
        text=choice["message"].get("content") or "",
        model=body.get("model", ""),
        finish_reason=choice.get("finish_reason"),
        token_ids=tuple(choice.get("token_ids") or ()),
        logprobs=tuple(item["logprob"] for item in logprobs),
        message=choice["message"],
        weight_version=body.get("weight_version") or "",
    )
