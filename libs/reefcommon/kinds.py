"""The kinds of content: how each is checked, evaluated, staged, served and dropped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reefcommon.events import Kind, Operation

# dropped   All alike: the host drops the content of a lost candidate after a while
#           (`reefkit.jobs.retention`), the publisher the copies that no resident release names.


@dataclass(frozen=True, slots=True)
class KindRow:
    """A kind. `group`: kinds whose contents age together."""

    group: str
    # Loaded on a node under its own name; as the head with other rules; only by its digest.
    tried: Literal["adapter", "harness", "whole", "never"]
    # By the nodes; by what a client or the gateway puts into requests; by download.
    served: Literal["nodes", "requests", "download"]
    # The publisher fetches it whole before the head moves.
    staged: bool = True
    # The gateway hands out its files.
    downloaded: bool = True
    # Not made from its base: it may be compared with any head.
    stands_alone: bool = False
    # The word in the chain; None: `training` if a recipe made it, else `manual`.
    operation: Operation | None = None

    @property
    def needs_nodes(self) -> bool:
        return self.served == "nodes"


KINDS: Mapping[Kind, KindRow] = {
    "base": KindRow("weights", "never", "nodes", staged=False, downloaded=False),
    "lora": KindRow("weights", "adapter", "nodes"),
    # Full weights may be large: they are fetched only if a node needs them.
    "checkpoint": KindRow("weights", "whole", "nodes", staged=False, downloaded=False),
    "harness": KindRow("harness", "harness", "requests", operation="harness"),
    "routing": KindRow("routing", "whole", "requests", operation="routing"),
    "solution": KindRow("solution", "whole", "download", stands_alone=True),
}
