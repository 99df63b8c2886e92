"""The archive of a search: its solutions as a forest, and the PUCT rule that picks parents."""

# Pure. A node is a solution; its parent is the solution that its prompt showed.

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reefcommon.errors import ReefError
from reefcommon.ids import digest

LEAST_SCALE = 1e-6
CHILDREN_KEPT = 2


class TooFewLineages(ReefError):
    """Fewer independent lineages than parents were asked for."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A valid solution: greater values are better, equal texts are the same solution.

    `words`: the end of its output, for the next prompt. `figure`: JSON, for its picture.
    """

    value: float
    text: str
    words: str = ""
    figure: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Node:
    """`visits` counts the rollouts from this node and from all below it, failed ones included.

    `best_child`: the greatest value of a child, also of a child that is no longer kept.
    """

    id: str
    solution: Solution
    step: int = -1
    parent: str | None = None
    seed: bool = False
    visits: int = 0
    best_child: float | None = None

    @property
    def value(self) -> float:
        return self.solution.value

    @property
    def promise(self) -> float:
        # Q of the rule: the best child's value, not the mean of the children. A node whose
        # rollouts all failed has no child's value, and keeps its own.
        return self.value if self.best_child is None else self.best_child


class Archive:
    def __init__(self, seeds: int, *, exploration: float = 1.0, capacity: int = 1000) -> None:
        self.exploration, self.capacity = exploration, capacity
        self.rollouts = 0
        empty = Solution(0.0, "")
        named = (f"seed-{number}" for number in range(seeds))
        self.nodes = {name: Node(name, empty, seed=True) for name in named}

    def best(self) -> Node | None:
        """Return the best solution, the oldest of equal solutions; None if there is none."""
        found = [node for node in self.nodes.values() if not node.seed]
        return max(found, key=lambda node: node.value, default=None)

    def scores(self) -> dict[str, float]:
        """Return Q + c * scale * P * sqrt(1 + T) / (1 + n) of every node."""
        nodes = sorted(self.nodes.values(), key=lambda node: -node.value)  # stable: oldest first
        count = len(nodes)
        values = [node.value for node in nodes if not node.seed] or [n.value for n in nodes]
        scale = max(max(values) - min(values), LEAST_SCALE)
        width = self.exploration * scale * (1 + self.rollouts) ** 0.5
        priors = ((count - rank) / (count * (count + 1) / 2) for rank in range(count))
        return {
            node.id: node.promise + width * prior / (1 + node.visits)
            for node, prior in zip(nodes, priors, strict=True)
        }

    def select(self, count: int) -> list[Node]:
        """Return parents of which none descends from another, the best score first.

        Raises TooFewLineages.
        """
        scores = self.scores()
        order = sorted(self.nodes.values(), key=lambda node: (-scores[node.id], -node.value))
        picked: list[Node] = []
        blocked: set[str] = set()
        for node in order:
            if len(picked) == count:
                break
            if node.id not in blocked:
                picked.append(node)
                blocked |= self._lineage(node)
        if len(picked) < count:
            raise TooFewLineages(f"{count} parents wanted, {len(picked)} lineages kept")
        return picked

    def expand(self, parent: str, found: Sequence[Solution | None], step: int) -> None:
        """Count the rollouts from a parent and keep the new solutions. None: a failed rollout.

        Call `prune` when all parents of a step are expanded: it may remove one of them.
        """
        self.rollouts += len(found)
        for node in self._upwards(parent):
            node.visits += len(found)
        node = self.nodes[parent]
        known = {other.solution.text for other in self.nodes.values()}
        for solution in found:
            if solution is None:
                continue
            best = node.best_child
            node.best_child = solution.value if best is None else max(best, solution.value)
            if solution.text in known:
                continue
            known.add(solution.text)
            name = digest("solution", solution.text)
            self.nodes[name] = Node(name, solution, step=step, parent=parent)

    def prune(self) -> None:
        """Keep the best two children of every parent, then the best nodes, and all seeds."""
        order = sorted(self.nodes.values(), key=lambda node: -node.value)  # stable: oldest first
        children: dict[str, int] = {}
        kept: set[str] = set()
        for node in order:
            rank = children.get(node.parent or "", 0)
            children[node.parent or ""] = rank + 1
            if node.seed or node.parent is None or rank < CHILDREN_KEPT:
                kept.add(node.id)
        seeds = sum(node.seed for node in order)
        ranked = [node.id for node in order if node.id in kept and not node.seed]
        kept -= set(ranked[max(self.capacity - seeds, 0) :])
        self.nodes = {name: node for name, node in self.nodes.items() if name in kept}
        for node in self.nodes.values():
            if node.parent not in self.nodes:
                node.parent = None  # a child whose parent is gone is a root

    def state(self) -> dict[str, Any]:
        """Return the archive as JSON."""
        return {"rollouts": self.rollouts, "nodes": [asdict(n) for n in self.nodes.values()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rollouts = state["rollouts"]
        nodes = (
            Node(**{**stored, "solution": Solution(**stored["solution"])})
            for stored in state["nodes"]
        )
        self.nodes = {node.id: node for node in nodes}

    def _upwards(self, name: str) -> Iterable[Node]:
        """The node and all of its ancestors."""
        current: str | None = name
        while current is not None:
            node = self.nodes[current]
            yield node
            current = node.parent

    def _lineage(self, node: Node) -> set[str]:
        """The node, its ancestors and its descendants."""
        upwards = {other.id for other in self._upwards(node.id)}
        below = {node.id}
        # A child is younger than its parent, and the nodes are in the order of their age.
        for other in self.nodes.values():
            if other.parent in below:
                below.add(other.id)
        return upwards | below
