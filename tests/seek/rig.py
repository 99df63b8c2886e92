"""A host with a seeker on one directory, beside a world that outlives it."""

import asyncio
import contextlib

import httpx

from reefcommon.config_sections import ModelEndpoint
from reefcommon.events import CandidateProposed
from reefcommon.recipe import Decision, Knobs
from reefkit.artifacts.cache import FetchedTrees
from reefkit.jobs.context import Kit
from reefkit.jobs.host import build
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeServices
from reefkit.recipes.seek_client import SeekClient
from reefkit.recipes.seek_services import SeekServices
from reefkit.retry import RetryPolicy
from tests.fakes.heads import MemoryReleaseHeads
from tests.fakes.leases import SoleHolder
from tests.jobs.words import WordsExecutor, WordsRecipe
from tests.recipes.samples import AT
from tests.trainer.rig import Bus, Mortal, Shelf, release

STEPS, ROLLOUTS = 3, 4
QUICK = RetryPolicy(0.01, 0.05, 3)


class GridRecipe(WordsRecipe):
    """Three steps of four questions; each step's units are one job, and its end is remembered."""

    def decide(self, waiting):
        return Decision(batch=tuple(waiting[:ROLLOUTS]) if len(waiting) >= ROLLOUTS else ())

    async def seek(self, ctx):
        while (step := ctx.store.get("step", 0)) < STEPS:

            async def rollout(place, step=step):
                question = [{"role": "user", "content": f"step {step}"}]
                asked = await ctx.ask(
                    question, key=f"{step}/{place}", tags={"step": str(step)}, seed=place
                )
                await ctx.report(asked.receipt, len(asked.text), feedback=f"w{step} w{place}")
                return asked

            asked = await asyncio.gather(*(rollout(place) for place in range(ROLLOUTS)))
            end = await ctx.learned([each.receipt for each in asked])
            history = ctx.store.get("history", [])
            ctx.store.put("history", [*history, [step, end, [each.text for each in asked]]])
            ctx.store.put("step", step + 1)
            await ctx.commit()


class SeekRig:
    """One host process; `restart` is the next one on the same disk."""

    def __init__(
        self, home, world, *recipes, in_flight=8, created=True, programs=None, budget=None
    ):
        self.home, self.world, self.recipes, self.in_flight = home, world, recipes, in_flight
        self.bus, self.shelf = Bus(Mortal()), Shelf(home / "shelf", Mortal())
        self.created, self.programs, self.budget = created, programs, budget
        self.begin()

    def begin(self):
        self.store = JobStore(self.home / "ledger.sqlite")
        if self.created:
            self.store.advance(release(5))
        services = SeekServices(self.client, MemoryReleaseHeads(), restarts=RetryPolicy(0.02, 0.5))
        self.kit = Kit(
            self.home,
            self.store,
            self.shelf,
            FetchedTrees(self.home / "trees"),
            Outbox(self.store, self.bus, SoleHolder()),
            lambda: AT,
            QUICK,
            5.0,
            recipes=RecipeServices(
                self.store, lambda: AT, self.models(), QUICK, programs=self.programs
            ),
            seekers=services,
        )
        bound = [
            Binding("default", f"tests.seek.rig:R{number}", recipe)
            for number, recipe in enumerate(self.recipes or (GridRecipe(Knobs()),))
        ]
        self.handlers = build(bound, self.kit, WordsExecutor)
        self.loop = self.handlers.loops[0]

    def models(self):
        if self.budget is None:
            return ModelPool(self.store)
        entries = {"served": ModelEndpoint(**self.budget)}
        return ModelPool(self.store, entries, gateway_url="http://gateway")

    def client(self):
        transport = httpx.MockTransport(self.world.handle)
        return SeekClient("http://gateway", in_flight=self.in_flight, transport=transport)

    def state(self, key, number=0):
        found = self.store.state_value(self.handlers.loops[number].binding.key, key)
        return None if found is None else found[1]

    @contextlib.asynccontextmanager
    async def running(self):
        """The tasks of the host, and the log's deliveries from its beginning."""
        tasks = [
            asyncio.create_task(task.run())
            for loop in self.handlers.loops
            for task in loop.tasks()
            if not task.name.endswith(": seek")
        ]
        self.seeks = [asyncio.create_task(loop.seeker.run()) for loop in self.handlers.loops]
        tasks += [*self.seeks, asyncio.create_task(self.deliver())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for loop in self.handlers.loops:
                loop.runtime.stop()

    async def deliver(self):
        units = publications = 0
        while True:
            for unit in self.world.units[units:]:
                await self.handlers.on_unit(unit)
                units += 1
            for candidate in self.bus.of(CandidateProposed):
                self.world.judge(candidate)
            for event in self.world.publications[publications:]:
                await self.handlers.on_publication(event)
                publications += 1
            await asyncio.sleep(0.005)

    async def live(self):
        """Run until all seekers are done, or the world says that the host is killed. Returns whether it ended by itself."""
        async with self.running():
            death = asyncio.create_task(self.world.killed.wait())
            done = asyncio.gather(*self.seeks)
            await asyncio.wait({death, done}, return_when=asyncio.FIRST_COMPLETED, timeout=120)
            ended = done.done()
            death.cancel()
            if not ended:
                done.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await done
        return ended

    def restart(self):
        self.store.close()
        self.world.killed.clear()
        self.begin()
