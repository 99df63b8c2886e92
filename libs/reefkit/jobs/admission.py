"""The decision on waiting samples: the host's own rules, then the recipe's `decide`."""

import math
from dataclasses import dataclass

from reefcommon.errors import Transient
from reefcommon.events import Release, Unit
from reefcommon.recipe import Decision, Recipe, Refusal
from reefkit.jobs.faults import BoundedCall, minimal_failing, place_of
from reefkit.jobs.ports import Executor, Samples
from reefkit.jobs.usable import unusable
from reefkit.recipe_binding import Binding

ALREADY_TRAINED = "already_trained"
_OTHERS_TRIED = 5


@dataclass(frozen=True, slots=True)
class Admission:
    binding: Binding[Recipe]
    executor: Executor
    call: BoundedCall[Decision]

    async def choose(self, waiting: Samples, used: set[str], head: Release) -> Decision:
        """Return the decision on `waiting`. Samples at fault are refused.

        Raises:
            Transient: the recipe is at fault, or `decide` takes too long.
        """
        refused: list[Refusal] = []
        fresh: list[Unit] = []
        taken: set[str] = set()
        for sample in waiting:
            reason = self._unusable(sample, used)
            if reason is not None:
                refused.append((sample, reason, None))
            elif not self.executor.once_per_record or taken.isdisjoint(sample.record_ids):
                # Of two samples that share a record the later waits for the fate of the earlier.
                taken.update(sample.record_ids)
                fresh.append(sample)
        try:
            decision = await self._decide(fresh, head)
        except Transient:
            raise
        except Exception as error:  # noqa: BLE001  # the recipe is its author's code
            culprits = await self._culprits(fresh, head, error)
            return Decision((), (*refused, *culprits))
        return Decision(decision.batch, (*refused, *decision.refused))

    def _unusable(self, sample: Unit, used: set[str]) -> str | None:
        if (reason := unusable(self.binding, sample)) is not None:
            return reason
        if self.executor.once_per_record and not used.isdisjoint(sample.record_ids):
            return ALREADY_TRAINED
        return None

    # A decision may name only samples that were offered, each once: else a sample would be in two
    # jobs, or settled unseen.
    async def _decide(self, offered: Samples, head: Release) -> Decision:
        decision = await self.call(self.executor.decide, offered, head)
        refused = [sample for sample, _, _ in decision.refused]
        named = [sample.event_id for sample in (*decision.batch, *refused)]
        if strangers := set(named) - {sample.event_id for sample in offered}:
            raise ValueError(f"sample {min(strangers)} was not offered")
        if len(set(named)) < len(named):
            raise ValueError(f"{len(named) - len(set(named))} samples are named twice")
        if not all(math.isfinite(lag or 0.0) for _, _, lag in decision.refused):
            raise ValueError("the lag of a refused sample is not finite")
        return decision

    async def _culprits(self, offered: Samples, head: Release, error: Exception) -> list[Refusal]:
        async def fails(samples: Samples) -> bool:
            nonlocal error
            try:
                await self._decide(samples, head)
            except Transient:
                raise
            except Exception as failure:  # noqa: BLE001  # the recipe is its author's code
                error = failure
                return True
            return False

        words = f"{type(error).__name__}: {error}"
        broken = Transient(f"{self.binding.dotted} cannot decide: {words}")
        if not offered or await fails(()):
            raise broken from error
        found = await minimal_failing(offered, fails)
        await fails(found)
        reason = f"decide failed: {place_of(error)}"
        others = [sample for sample in offered if sample not in found][:_OTHERS_TRIED]
        # A recipe that fails on each sample alone is at fault itself: it costs no sample.
        if len(found) == 1 and others and all([await fails((sample,)) for sample in others]):
            raise broken from error
        return [(sample, reason, None) for sample in found]
