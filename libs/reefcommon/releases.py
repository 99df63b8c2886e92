"""Release heads: an append-only chain per scenario; the head moves by compare-and-swap."""

# The adapter over Redis is `reefkit.redis_heads`. It is a projection of `reef.releases.v1`.

from collections.abc import Mapping
from typing import Protocol

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.config_sections import OnStale
from reefcommon.events import Kind, Release
from reefcommon.kinds import KINDS

BASE_ADAPTER = None
"""A release whose adapter is None is served by the base model."""

LOAD_GROUPS: Mapping[str, str] = {kind: row.group for kind, row in KINDS.items()}
"""Kinds whose contents age together. A load counts the changes of one group in a chain."""

GROUPS = tuple(dict.fromkeys(LOAD_GROUPS.values()))


class ReleaseHeads(Protocol):
    """Chains and heads. Every call raises Unavailable if the store does not answer."""

    async def head(self, scenario: str) -> Release | None:
        """Return the serving release; None if the scenario does not exist."""

    async def chain(self, scenario: str, *, limit: int = 100) -> list[Release]:
        """Return the releases, newest first."""

    async def release(self, scenario: str, release_id: str) -> Release | None:
        """Return a release, published or pending."""

    async def advance(self, release: Release) -> None:
        """Append `release` as the head, atomically. May be repeated.

        Raises:
            Conflict: its parent is not the head.
        """

    async def scenarios(self) -> list[str]:
        """Return the scenarios with a head."""

    async def put_pending(self, release: Release) -> None:
        """Keep a winner that waits for review."""

    async def pending(self, scenario: str) -> list[Release]:
        """Return the pending releases, oldest first."""

    async def drop_pending(self, scenario: str, release_id: str) -> None:
        """Forget a pending release."""

    async def hold(self, scenario: str, reason: str | None) -> None:
        """Let winners wait for a person, for a reason; None: no more."""

    async def held(self, scenario: str) -> str | None:
        """Return why winners wait; None if they do not."""


def next_contents(parent: Release | None, kind: str, content_id: str) -> dict[str, str]:
    # Full weights end the parent's adapter, which was trained on other weights.
    contents = dict(parent.contents) if parent else {}
    if kind == "checkpoint":
        contents.pop("lora", None)
    return {**contents, kind: content_id}


def loads_of(release: Release) -> dict[str, str]:
    # A release of an old chain has a single load id for all groups.
    return {group: release.loads.get(group, release.load_id) for group in GROUPS}


def group_contents(contents: Mapping[str, str], group: str) -> dict[str, str]:
    found = {kind: content for kind, content in contents.items() if LOAD_GROUPS[kind] == group}
    # The base model is below every adapter, whether or not an old release names it.
    return {"base": BASE_CONTENT_ID, **found} if group == "weights" else found


def may_follow(on_stale: OnStale, base: Release | None, head: Release, kind: Kind) -> bool:
    """Return whether a candidate of `base` may be evaluated again on another head.

    With `merge` it may if its kind's group has not changed since its base.
    """
    if base is None or on_stale == "refuse" or base_weights(base) != base_weights(head):
        return False
    group = LOAD_GROUPS[kind]
    return on_stale == "reevaluate" or loads_of(base)[group] == loads_of(head)[group]


def may_be_compared(on_stale: OnStale, base: Release | None, head: Release, kind: Kind) -> bool:
    """Return whether a candidate of `base` may be evaluated on another head."""
    if KINDS[kind].stands_alone:
        return on_stale != "refuse"
    return may_follow(on_stale, base, head, kind)


def base_weights(release: Release) -> str:
    """Return the content below the adapter: full weights, or the base model."""
    return release.contents.get("checkpoint", BASE_CONTENT_ID)


def adapter_name(scenario: str, release_id: str) -> str:
    # It is new for every release: an engine's prefix cache keys on the name and the path.
    return f"{scenario}@{release_id}"
