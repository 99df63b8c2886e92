"""The parts that the seekers of a host share."""

from collections.abc import Callable
from dataclasses import dataclass

from reefcommon.releases import ReleaseHeads
from reefkit.recipes.seek_client import SeekClient
from reefkit.retry import RetryPolicy

RESTARTS = RetryPolicy(1.0, 60.0)
SUFFIX = "#seek"
"""After the key of a binding: the jobs of its seeker's proposals, beside those of its units."""


@dataclass(frozen=True, slots=True)
class SeekServices:
    """`client` makes a client for a binding; `restarts`: delays after a failure of `seek`."""

    client: Callable[[], SeekClient]
    heads: ReleaseHeads
    model_name: str = "reef"
    priority: int = 10
    restarts: RetryPolicy = RESTARTS
