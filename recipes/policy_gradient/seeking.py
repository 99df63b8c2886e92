"""Parts of recipes that seek: work side by side, and a state that belongs to one set of knobs."""

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from reefcommon.errors import BadConfig
from reefcommon.ids import digest
from reefcommon.recipe_context import SeekContext, State

T = TypeVar("T")
UNCUT = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""Sampling without truncation."""


class Kept(Protocol):
    def keep(self, store: State) -> None: ...


async def commit(ctx: SeekContext, state: Kept) -> None:
    """Keep a state durably."""
    state.keep(ctx.store)
    await ctx.commit()


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all. The first error ends the others, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        # By its own type: a spent budget waits, a lost lease ends, others are tried again.
        raise failed.exceptions[0] from None
    return [task.result() for task in running]


def header(identity: Mapping[str, Any], *, pending: bool) -> dict[str, Any]:
    """Return the fields that a stored state begins with."""
    status = "pending" if pending else "committed"
    return {"status": status, "digest": digest(dict(identity)), "identity": dict(identity)}


def as_stored(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity as the store gives it back."""
    return dict(json.loads(json.dumps(identity)))


def check_identity(
    stored: Mapping[str, Any], identity: Mapping[str, Any], held: str, remedy: str
) -> None:
    """Raises BadConfig if a stored state has another identity."""
    if stored["digest"] == digest(dict(identity)):
        return
    before = stored["identity"]
    changed = ", ".join(
        f"{name} was {before.get(name)!r} and is {identity.get(name)!r}"
        for name in sorted(before.keys() | identity.keys())
        if before.get(name) != identity.get(name)
    )
    raise BadConfig(f"the scenario holds {held}: {changed}; set it back, or {remedy}")
