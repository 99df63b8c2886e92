"""The choice of a serving node: the least busy, or the node that knows the conversation."""

import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

FAILURES_TO_OPEN = 3
OPEN_S = 5.0
AFFINITY_SLACK = 4  # requests that a conversation's own node may be busier than the least busy one


@dataclass(slots=True)
class Node:
    """The gateway's knowledge of a node."""

    url: str
    in_flight: int = 0
    failures: int = 0
    open_until: float = 0.0
    models: frozenset[str] | None = None  # until it lists them
    context_tokens: int | None = None  # prompt and completion, if the node says so
    lacking: set[str] = field(default_factory=set)
    apart: bool = False  # the publisher has taken it out of rotation

    def available(self, now: float) -> bool:
        """Return whether the circuit lets requests through, as it does after a pause."""
        return self.failures < FAILURES_TO_OPEN or now >= self.open_until

    def serves(self, model: str) -> bool:
        """Return whether the node may have the model."""
        return model not in self.lacking and (self.models is None or model in self.models)

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self, now: float) -> None:
        """Count a failure; several in a row open the circuit."""
        self.failures += 1
        self.open_until = now + OPEN_S

    def listed(self, models: Iterable[str]) -> None:
        self.models = frozenset(models)
        self.lacking.clear()


def choose(
    nodes: Collection[Node], model: str, affinity: str, *, now: float, tried: Collection[str] = ()
) -> Node | None:
    """Return the node to ask; None if none is left.

    Nodes set apart, or not known to have the model, come last.
    """
    open_nodes = [node for node in nodes if node.url not in tried and node.available(now)]
    if len(open_nodes) <= 1:
        return open_nodes[0] if open_nodes else None
    open_nodes = [node for node in open_nodes if not node.apart] or open_nodes
    able = [node for node in open_nodes if node.serves(model)] or open_nodes
    least = min(able, key=lambda node: node.in_flight)
    own = max(able, key=lambda node: zlib.crc32(f"{affinity}{node.url}".encode()))
    return own if own.in_flight <= least.in_flight + AFFINITY_SLACK else least
