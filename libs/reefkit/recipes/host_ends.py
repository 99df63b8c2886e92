"""Calls of a recipe that end the process of its host: after some ends they are refused."""

# A host's first minute alone is watched: a supervisor gives up a program that ends soon after each
# start, and a note costs two syncs.

import asyncio
import inspect
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from reefcommon.errors import Transient
from reefcommon.ids import digest
from reefcommon.recipe import Recipe
from reefkit.jobs.recipe_store import RecipeStore

MAX_ENDS = 3  # the end before them may have been an old host's; a supervisor gives up after five
WATCHED_S = 60.0
SETTLED_S = 20.0  # a call that runs for so long does not end its host quickly
AGAIN_AFTER_S = 600.0


class EndsHost(Transient):
    """The host has ended in this call, several times in a row: the call is not made now."""


@dataclass(slots=True)
class HostEnds:
    """Notes of a binding on calls that are under way; a note stays if the process ends."""

    store: RecipeStore
    binding: str
    recipe: Recipe
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _began: float | None = None
    _refused: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def noted(self, call: str, place: str = "") -> AsyncIterator[None]:
        """Keep a note while a call is under way. A changed `place`, or recipe, counts anew.

        Raises EndsHost.
        """
        now = time.monotonic()
        self._began = self._began or now
        if now - self._began > WATCHED_S and call not in self._refused:
            yield
            return
        version = await asyncio.to_thread(_version, self.recipe)
        noted = (self.binding, call, f"{version} {place}", time.time())
        suspected = await asyncio.to_thread(self.store.was_noted, self.binding, call)
        async with AsyncExitStack() as turn:
            if suspected:  # one at a time: of several at once the guilty call could not be told
                await turn.enter_async_context(self.turn)
            ends = await asyncio.to_thread(self.store.begin_noted, *noted, MAX_ENDS, AGAIN_AFTER_S)
            if ends:
                self._refused.add(call)
                later = f"it is called again {AGAIN_AFTER_S / 60:.0f} min after the last time"
                raise EndsHost(f"{call} has ended its host {ends} times: mend the recipe; {later}")
            settling = asyncio.create_task(self._settle(call, turn))
            try:
                yield
            finally:
                settling.cancel()
                await asyncio.wait([settling])  # and not the task: a cancellation of ours would go
                await self._end(call)

    async def _settle(self, call: str, turn: AsyncExitStack) -> None:
        await asyncio.sleep(SETTLED_S)
        await self._end(call)
        await turn.aclose()

    async def _end(self, call: str) -> None:
        self._refused.discard(call)
        await asyncio.to_thread(self.store.end_noted, self.binding, call)


def _version(recipe: Recipe) -> str:
    # With the modules beside it: a recipe may be mended in any of them.
    sources = []
    with suppress(OSError, TypeError):
        file = Path(inspect.getfile(type(recipe)))
        sources = [one.read_bytes().hex() for one in (file, *sorted(file.parent.glob("*.py")))]
    return digest("version", *sources, repr(recipe.knobs))
