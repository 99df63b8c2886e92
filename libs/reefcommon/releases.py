"""Release heads: an append-only chain a scenario, whose head moves by compare-and-swap.

The adapter over Redis is `reefkit.redis_heads`; the log (`reef.releases.v1`) is the truth that it can be rebuilt from.
"""

from collections.abc import Mapping
from typing import Protocol

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.events import Release

BASE_ADAPTER = None
"""A release whose adapter is None is served by the base model."""


class ReleaseHeads(Protocol):
    """Chains and heads. Every call raises Unavailable where the store does not answer."""

    async def head(self, scenario: str) -> Release | None:
        """The release that serves now; None where the scenario does not exist."""

    async def chain(self, scenario: str, *, limit: int = 100) -> list[Release]:
        """The chain, newest first."""

    async def release(self, scenario: str, release_id: str) -> Release | None:
        """One release of the chain, or a pending one."""

    async def advance(self, release: Release) -> None:
        """If the head is `release.parent_id`, append `release` and make it the head, in one step.

        Raises Conflict where the head is another; then nothing has changed. Advancing to the release that is the head already is a repeat.
        """

    async def scenarios(self) -> list[str]:
        """Every scenario that has a head."""

    async def put_pending(self, release: Release) -> None:
        """Keep a winner that waits for a person."""

    async def pending(self, scenario: str) -> list[Release]:
        """What waits for a person, oldest first."""

    async def drop_pending(self, scenario: str, release_id: str) -> None:
        """Forget a pending release (it was promoted or withdrawn)."""


def next_contents(parent: Release | None, kind: str, content_id: str) -> dict[str, str]:
    """What a release serves of each kind: its parent's contents with one of them replaced. Weights and harness evolve together so.
    Full weights end the parent's adapter, which was made for other ones."""
    contents: Mapping[str, str] = parent.contents if parent else {}
    kept = {
        name: content
        for name, content in contents.items()
        if not (kind == "checkpoint" and name == "lora")
    }
    return {**kept, kind: content_id}


def base_weights(release: Release) -> str:
    """The content of the weights below a release's adapter: full weights, or the base model as it is."""
    return release.contents.get("checkpoint", BASE_CONTENT_ID)


def adapter_name(scenario: str, release_id: str) -> str:
    """The engine-side name of a release's adapter: new for every release, since an engine's prefix cache keys on the name and the path."""
    return f"{scenario}@{release_id}"
