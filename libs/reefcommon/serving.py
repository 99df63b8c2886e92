"""The port to a serving node, for control and evaluation: vLLM's HTTP surface."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from reefcommon.errors import Poison


@dataclass(frozen=True, slots=True)
class Answer:
    """A generated choice. `token_ids` and `logprobs` have equal length, if returned.

    `weight_version` names the weights of the last token, if known.
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
    """The base weights. `tensors`: name -> SHA-256 of the float32 bytes, if asked for."""

    version: str
    tensors: Mapping[str, str] = field(default_factory=dict)


class NotOffered(Poison):
    """The node has no such route."""


class WrongModel(Poison):
    """Another model, or other weights, answered."""


class ServingNode(Protocol):
    """Control of a node, and episodes on it.

    Raises:
        Unavailable: the node does not answer.
        Transient: the node fails.
        Poison: the node refuses the request.
    """

    url: str

    async def models(self) -> dict[str, str | None]:
        """Return name -> path of the adapter, or root of the base model."""

    async def context_tokens(self) -> int | None:
        """Return the longest prompt and completion together, if the node says it."""

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter. May be repeated."""

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
        """Return `n` answers to a conversation."""

    async def prompt_logprobs(
        self, model: str, tokens: list[int], *, priority: int = 0, timeout_s: float = 120.0
    ) -> list[float]:
        """Return log p(tokens[i] | tokens[:i]) in nats, for i >= 1.

        A lower `priority` is served first; users have 0.
        """


class WeightNode(ServingNode, Protocol):
    """A node with replaceable base weights: pause, start, transfer, finish, resume."""

    async def pause(self, *, timeout_s: float) -> None:
        """Stop stepping; requests wait. May be repeated."""

    async def resume(self, *, timeout_s: float) -> None:
        """Step again. May be repeated."""

    async def is_paused(self) -> bool:
        """Return whether the node is paused. False if it has no such route."""

    async def weights(self, *, tensors: bool = False, timeout_s: float = 10.0) -> NodeWeights:
        """Return the served version; "" at the start."""

    async def world_size(self) -> int:
        """Return the node's ranks in a transfer."""

    async def meet(self, host: str, port: int, world_size: int, *, timeout_s: float) -> None:
        """Join the sender's process group as ranks 1 and up."""

    async def start_update(self, *, timeout_s: float) -> None:
        """Begin an update; drop an unfinished update."""

    async def update(self, info: Mapping[str, Any], *, timeout_s: float) -> None:
        """Take tensors: `weights_path`, or the `names`, `dtype_names`, `shapes` of a broadcast."""

    async def finish_update(self, version: str, *, timeout_s: float) -> None:
        """Serve the new tensors under this version."""

    async def reset_prefix_cache(self, *, timeout_s: float) -> None:
        """Drop the old keys and values."""


async def ping(node: ServingNode, model: str, **params: Any) -> Answer:
    """Ask for a token. Raises WrongModel if another model answers, else as `ServingNode.chat`."""
    messages = [{"role": "user", "content": "ping"}]
    answers = await node.chat(model, messages, max_tokens=1, temperature=0.0, **params)
    answered = answers[0].model if answers else "nothing"
    if answered != model:
        raise WrongModel(f"{node.url} was asked for {model} and answered with {answered}")
    return answers[0]
