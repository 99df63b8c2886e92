"""A host of the made-up kind on one directory, which can be killed at any effect."""

from datetime import timedelta

from reefcommon.events import (
    CandidateProposed,
    ReleasePublished,
    ReleaseRejected,
    SignalComputed,
    StepCompleted,
)
from reefcommon.recipe import Knobs
from reefkit.artifacts.cache import FetchedTrees
from reefkit.jobs.context import Kit
from reefkit.jobs.host import build
from reefkit.jobs.outbox import Outbox
from reefkit.recipe_binding import Binding
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeServices
from reefkit.retry import RetryPolicy
from tests.fakes.leases import SoleHolder
from tests.jobs.words import WordsExecutor, WordsRecipe
from tests.recipes.samples import AT, sample
from tests.trainer.rig import Bus, Mortal, MortalStore, Shelf, release


class WordsRig:
    """One host process; `restart` is the next one on the same disk, bus and store."""

    def __init__(
        self,
        home,
        *,
        mortal=None,
        bus=None,
        lease=None,
        on_stale="merge",
        recipe=None,
        models=None,
        **services,
    ):
        self.models, self.services, self.pools = models or {}, services, []
        self.home, self.mortal, self.on_stale = home, mortal or Mortal(), on_stale
        self.bus, self.shelf = bus or Bus(self.mortal), Shelf(home / "shelf", self.mortal)
        self.recipe, self.lease, self.now = (
            recipe or WordsRecipe(Knobs()),
            lease or SoleHolder(),
            AT,
        )
        self.begin()

    def begin(self):
        self.store = MortalStore(self.home / "ledger.sqlite", self.mortal)
        outbox = Outbox(self.store, self.bus, self.lease)
        self.pools.append(ModelPool(self.store, self.models))
        self.kit = Kit(
            self.home,
            self.store,
            self.shelf,
            FetchedTrees(self.home / "trees"),
            outbox,
            self.clock,
            RetryPolicy(0.01, 0.05, 3),
            5.0,
            RecipeServices(
                self.store,
                self.clock,
                self.pools[-1],
                RetryPolicy(0.01, 0.05, 3),
                signal_log=self.signal_log,
                **self.services,
            ),
        )
        binding = Binding("default", "tests.jobs.words:W", self.recipe, on_stale=self.on_stale)
        self.key = binding.key
        self.handlers = build((binding,), self.kit, WordsExecutor)
        (self.loop,) = self.handlers.loops

    async def signal_log(self):
        return self.bus.of(SignalComputed)

    def clock(self):
        self.now += timedelta(seconds=1)
        return self.now

    def restart(self):
        self.loop.runtime.stop()
        self.store.close()
        self.begin()

    async def close(self):
        self.loop.runtime.stop()
        for pool in self.pools:
            await pool.close()
        self.store.close()

    async def settle(self):
        while await self.loop.once():
            pass

    async def judge(self):
        """Compute all signals that can be computed, then decide."""
        await self.loop.signals.settle()
        await self.settle()

    async def arrive(self, *words, first=0):
        for number, text in enumerate(words, start=first):
            await self.handlers.on_unit(sample(number, feedback=text))

    async def publish(self, sequence, *, candidate=None, loads=None, **changes):
        made = release(sequence, candidate=candidate).model_copy(
            update={"loads": loads or {}} | changes
        )
        await self.handlers.on_publication(
            ReleasePublished(event_id=f"r{sequence}", at=AT, scenario="default", release=made)
        )

    async def reject(self, candidate, outcome="rejected"):
        await self.handlers.on_publication(
            ReleaseRejected(
                event_id=f"rej-{candidate}-{outcome}", at=AT, scenario="default", outcome=outcome,
                reason="worse", candidate_id=candidate,
            )
        )  # fmt: skip

    def jobs(self):
        return self.store.counts("jobs", self.key)

    @property
    def candidates(self):
        """The distinct candidates in order; a repeat must be equal."""
        found = {}
        for event in self.bus.of(CandidateProposed):
            assert found.setdefault(event.event_id, event) == event
        return list(found.values())

    @property
    def steps(self):
        return {event.event_id: event for event in self.bus.of(StepCompleted)}
