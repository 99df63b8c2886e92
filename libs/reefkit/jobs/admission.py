"""The decision on waiting samples: the host's own rules, then the recipe's `decide`."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from reefcommon.errors import Transient
from reefcommon.events import Release, Unit
from reefcommon.recipe import Decision, Recipe, Refusal
from reefkit.jobs.faults import BoundedCall, bounded, last_lines, minimal_failing, place_of
from reefkit.jobs.ports import Executor, Samples
from reefkit.jobs.usable import unusable
from reefkit.recipe_binding import Binding
from reefkit.recipes.host_ends import HostEnds

ALREADY_TRAINED = "already_trained"
_OTHERS_TRIED = 5


@dataclass(frozen=True, slots=True)
class Admission:
    binding: Binding[Recipe]
    executor: Executor
    call: BoundedCall[Decision]
    ends: HostEnds

    async def choose(self, waiting: Samples, used: set[str], head: Release) -> Decision:
        """Return the decision on `waiting`. Samples at fault are refused.

        Raises:
            Transient: the recipe is at fault, or `decide` takes too long.
        """
        refused: list[Refusal] = []
        fresh: list[Unit] = []
        taken: set[str] = set()
        for sample in waiting:
            reason = self._unusable(sample, used, head)
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

    def _unusable(self, sample: Unit, used: set[str], head: Release) -> str | None:
        if (reason := unusable(self.binding, sample, head)) is not None:
            return reason
        if self.executor.once_per_record and not used.isdisjoint(sample.record_ids):
            return ALREADY_TRAINED
        return None

    # A decision may name only samples that were offered, each once: else a sample would be in two
    # jobs, or settled unseen.
    async def _decide(self, offered: Samples, head: Release) -> Decision:
        async with self.ends.noted("decide"):
            decision = await self.call(_decided, self.executor.decide, offered, head)
        chosen = [sample.event_id for sample in decision.batch]
        refused = [
            (sample.event_id, _reason(why), _lag(lag)) for sample, why, lag in decision.refused
        ]
        named = [*chosen, *(sample_id for sample_id, _, _ in refused)]
        own = {sample.event_id: sample for sample in offered}
        if strangers := set(named) - own.keys():
            raise ValueError(f"sample {min(strangers)} was not offered")
        if len(set(named)) < len(named):
            raise ValueError(f"{len(named) - len(set(named))} samples are named twice")
        # The host's own units: those of the recipe may be changed copies.
        found = tuple((own[sample_id], why, lag) for sample_id, why, lag in refused)
        return Decision(tuple(own[sample_id] for sample_id in chosen), found)

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

        words = last_lines(error).rpartition("\n")[2]
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


def _decided(
    decide: Callable[[Samples, Release], Decision], offered: Samples, head: Release
) -> Decision:
    # In the thread of the call: a generator is the recipe's code too, and may have no end.
    decision, most = decide(offered, head), len(offered) + 1
    return Decision(tuple(islice(decision.batch, most)), tuple(islice(decision.refused, most)))


def _reason(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f"the reason of a refusal is a text, not {given!r:.80}")
    return bounded(given)


def _lag(given: float | None) -> int | None:
    if given is not None and not float(given).is_integer():
        raise ValueError(
            f"the lag of a refused sample is a whole number or None, not {given!r:.80}"
        )
    return None if given is None else int(given)
