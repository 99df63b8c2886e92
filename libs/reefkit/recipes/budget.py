"""The budget of a model: durable counters in the job store, and limits of `serve.yaml`."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from reefcommon.config_sections import ModelEndpoint
from reefcommon.recipe_context import BudgetSpent
from reefkit.jobs.recipe_store import CallEnd, CallKey, RecipeStore

RAISE = "raise it in serve.yaml and restart"
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a model on this host. Calls in flight may exceed a limit of tokens."""

    name: str
    entry: ModelEndpoint
    store: RecipeStore

    async def begin(self, key: CallKey | None) -> None:
        """Count a call before it is sent, once for each key. Raises BudgetSpent."""
        limits = self.entry.limits
        spent = await asyncio.to_thread(self.store.begin_call, key, self.name, limits)
        if spent:
            raise BudgetSpent(f"the budget of model {self.name!r} is used up: {spent}; {RAISE}")

    async def end(
        self, key: CallKey | None, end: CallEnd, *, returned: bool = False, logged: bool = True
    ) -> None:
        prices = self.entry.prompt_price, self.entry.completion_price
        counts = end.use.prompt_tokens, end.use.completion_tokens
        cost = sum(price * n for price, n in zip(prices, counts, strict=True)) / _MILLION
        whole = replace(end, use=replace(end.use, cost=cost))
        save = partial(self.store.end_call, key, whole, returned=returned, logged=logged)
        await asyncio.to_thread(save)

    def facts(self) -> dict[str, Any]:
        """Return the used amounts and the limits. Blocks."""
        use = self.store.used(self.name)
        amounts: dict[str, float] = {"calls": use.calls, "tokens": use.tokens, "cost": use.cost}
        limits = self.entry.limits
        spent = [name for name, limit in limits.items() if amounts[name] >= limit]
        return {"used": amounts, "limits": limits, "spent": spent}
