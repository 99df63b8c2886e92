"""The port to a serving node: vLLM's HTTP surface, which the embedded engine speaks too.

The gateway relays live traffic by a path of its own. This port serves control and evaluation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from reefcommon.errors import Poison


@dataclass(frozen=True, slots=True)
class Answer:
    """One generated choice. `token_ids` and `logprobs` have equal length if the node returns them.

    `weight_version` names the weights that made the last token, if the node says so.
    """

    text: str
    model: str
    finish_reason: str | None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    message: dict[str, Any] = field(default_factory=dict)
    weight_version: str = ""


@dataclass(frozen=True, slots=True)
class NodeWeights:
    """The base weights of a node. `tensors`: name -> SHA-256 of the float32 bytes, if asked for."""

    version: str
    tensors: Mapping[str, str] = field(default_factory=dict)


class NotOffered(Poison):
    """The node has no such route."""


class ServingNode(Protocol):
    """Control of one node, and episodes on it.

    Raises:
        Unavailable: the node does not answer.
        Transient: the node fails.
        Poison: the node refuses the request.
    """

    url: str

    async def models(self) -> dict[str, str | None]:
        """Return the served names: for an adapter with its path, for a base model with its root."""

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter. May be repeated with the same name and path."""

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter, if it is loaded. Raises Transient if the node refuses."""

    async def chat(
        self,
        model: str,
        messages: list[dict[str, Any]],
        *,
        n: int = 1,
        timeout_s: float = 120.0,
        **params: Any,
    ) -> list[Answer]:
        """Return `n` answers of a model to one conversation."""

    async def prompt_logprobs(
        self, model: str, tokens: list[int], *, priority: int = 0, timeout_s: float = 120.0
    ) -> list[float]:
        """Return log p(tokens[i] | tokens[:i]) for i >= 1, in nats. Length: len(tokens) - 1.

        A lower `priority` is served first; users have 0.
        """


class WeightNode(ServingNode, Protocol):
    """A node whose base weights can be replaced: pause, start, transfer, finish, resume."""

    async def pause(self, *, timeout_s: float) -> None:
        """Stop stepping; requests wait. May be repeated."""

    async def resume(self, *, timeout_s: float) -> None:
        """Step again. May be repeated."""

    async def is_paused(self) -> bool:
        """Return whether the node is paused. False if it has no such route."""

    async def weights(self, *, tensors: bool = False, timeout_s: float = 10.0) -> NodeWeights:
        """Return the version that is served; "" for the weights that the node started with."""

    async def world_size(self) -> int:
        """Return the number of ranks that the node brings to a transfer."""

    async def meet(self, host: str, port: int, world_size: int, *, timeout_s: float) -> None:
        """Join the sender's process group as ranks 1 and up. The sender is rank 0."""

    async def start_update(self, *, timeout_s: float) -> None:
        """Begin an update, and drop an unfinished one."""

    async def update(self, info: Mapping[str, Any], *, timeout_s: float) -> None:
        """Take tensors: `weights_path` on a shared disk, or the `names`, `dtype_names`, `shapes`
        of a broadcast."""

    async def finish_update(self, version: str, *, timeout_s: float) -> None:
        """Serve the transferred tensors under this version."""

    async def reset_prefix_cache(self, *, timeout_s: float) -> None:
        """Drop the cached keys and values of the old weights."""
