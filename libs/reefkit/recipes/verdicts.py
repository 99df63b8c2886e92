"""Gives verdicts to `on_verdict`, in order and at least once."""

# A verdict is saved with the transition of its job, and removed with the writes of `on_verdict`.

import asyncio
from dataclasses import dataclass, field

import structlog
from pydantic import TypeAdapter

from reefcommon.errors import BadConfig, Unavailable
from reefcommon.events import Evaluation, Kind
from reefcommon.recipe import Judged, Recipe
from reefcommon.recipe_context import BudgetSpent
from reefkit.jobs import model
from reefkit.jobs.faults import place_of
from reefkit.jobs.model import Job
from reefkit.jobs.recipe_store import Effects
from reefkit.recipe_binding import Binding
from reefkit.recipes.host_ends import EndsHost
from reefkit.recipes.runtime import RecipeRuntime
from reefkit.recipes.seek_services import SUFFIX
from reefkit.redis_lease import LeaseLost

log = structlog.get_logger()


_JUDGED = TypeAdapter(Judged)


def told(
    binding: Binding[Recipe], kind: Kind, job: Job, evaluation: Evaluation | None
) -> str | None:
    """Return the verdict on a job as JSON; None if there is none, or the recipe takes none."""
    if type(binding.recipe).on_verdict is Recipe.on_verdict:
        return None
    judged = model.judged(binding, kind, job, evaluation)
    return None if judged is None else _JUDGED.dump_json(judged).decode()


@dataclass(slots=True)
class Verdicts:
    """The verdicts on candidates of a binding."""

    runtime: RecipeRuntime
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    last_error: str | None = None

    async def run(self) -> None:
        """Run until cancelled. Raises LeaseLost."""
        failures = 0
        while True:
            self.arrived.clear()
            try:
                await self.settle()
            except LeaseLost:
                raise
            except Exception as error:  # noqa: BLE001  # the host's other recipes go on
                failures += 1
                self._note(place_of(error), first=failures == 1)
                await asyncio.sleep(self.runtime.services.retry.delay_s(failures))
                continue
            failures = 0
            await self.arrived.wait()

    async def settle(self) -> None:
        services, key = self.runtime.services, self.runtime.binding.key
        for number, body in await asyncio.to_thread(self._waiting):
            failures = waits = 0
            while (error := await self._give(number, _JUDGED.validate_json(body))) is not None:
                # What is away, a judge or its budget, costs no verdict.
                away = isinstance(error, Unavailable | BudgetSpent | BadConfig)
                failures, waits = failures + (not away), waits + away
                self._note(place_of(error), first=failures + waits == 1)
                if services.retry.exhausted(failures) or isinstance(error, EndsHost):
                    done = Effects(key, f"verdict-{number}")
                    await asyncio.to_thread(services.store.end_verdict, number, done)
                    break
                await asyncio.sleep(services.retry.delay_s(failures + waits))

    def _waiting(self) -> list[tuple[int, str]]:
        store, key = self.runtime.services.store, self.runtime.binding.key
        return sorted([*store.verdicts(key), *store.verdicts(key + SUFFIX)])

    def _note(self, reason: str, *, first: bool) -> None:
        if first or reason != self.last_error:
            log.warning("verdict_put_off", binding=self.runtime.binding.key, reason=reason)
        self.last_error = reason

    async def _give(self, number: int, judged: Judged) -> Exception | None:
        """Return the error of a failure."""
        services, runtime = self.runtime.services, self.runtime
        ctx, limit_s = runtime.context(f"verdict-{number}"), services.verdict_timeout_s
        taken = runtime.binding.recipe.on_verdict
        try:
            async with runtime.ends.noted("on_verdict", f"verdict {number}"):
                await runtime.call(taken, judged, ctx, timeout_s=limit_s)
            await asyncio.to_thread(services.store.end_verdict, number, ctx.effects())
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001  # the recipe is its author's code
            return error
        return None
