"""Runs the step of a job; if it fails, finds the samples at fault."""

from collections.abc import Callable

import orjson
import structlog

from reefcommon.errors import Transient, Unavailable
from reefcommon.recipe_context import BudgetSpent
from reefkit.jobs.faults import last_lines, minimal_failing, place_of
from reefkit.jobs.model import Job
from reefkit.jobs.ports import Executor, Refused, Result, Samples
from reefkit.recipes.thread import RecipeTimeout
from reefkit.retry import RetryPolicy

log = structlog.get_logger()


class Steps:
    """The steps of a binding. `note` receives each failure, for `/status`."""

    def __init__(self, executor: Executor, retry: RetryPolicy, note: Callable[[str], None]) -> None:
        self._executor, self._retry, self._note = executor, retry, note
        self._attempts = 0

    async def run(self, job: Job, samples: Samples) -> Result:
        """Return the result; Refused names the samples at fault. Raises Transient to try again."""
        result = await self._result(job, samples)
        self._attempts = 0
        return result

    async def _result(self, job: Job, samples: Samples) -> Result:
        try:
            result = await self._executor.run(job, samples)
            if not isinstance(result, Refused):
                orjson.dumps(result.output)  # an output that is no JSON is the recipe's fault
            return result
        except (Unavailable, BudgetSpent):
            raise
        except Transient as error:
            self._attempts += 1
            if not self._retry.exhausted(self._attempts):
                raise
            reason = f"the step failed {self._attempts} times; last: {error}"
            if isinstance(error, RecipeTimeout):  # each probe would take as long
                return _all_refused(samples, reason)
            return await self._narrowed(job, samples, error, reason)
        except Exception as error:  # noqa: BLE001  # the recipe is its author's code
            log.warning("step_failed", binding=job.binding, job=job.job_id, trace=last_lines(error))
            return await self._narrowed(job, samples, error, _refusal(error))

    async def _narrowed(self, job: Job, samples: Samples, error: Exception, reason: str) -> Result:
        self._note(f"{reason}\n{last_lines(error)}")
        if len(samples) <= 1:  # a proposal has none
            return _all_refused(samples, reason)
        reasons: dict[str, str] = {}

        async def fails(part: Samples) -> bool:
            try:
                await self._executor.probe(job, part)
            except (Unavailable, BudgetSpent):
                raise
            except Exception as failure:  # noqa: BLE001  # the recipe is its author's code
                reasons.update({sample.event_id: _refusal(failure) for sample in part})
                return True
            return False

        # The whole again first: a fault that does not repeat is no sample's.
        if await fails(samples):
            culprits = await minimal_failing(samples, fails)
            named = {sample.event_id: reasons[sample.event_id] for sample in culprits}
            return Refused(reason, named)
        if not isinstance(error, Transient):
            self._attempts += 1
        if self._retry.exhausted(self._attempts):
            return _all_refused(samples, reason)
        raise Transient(f"{reason} (not again when it was repeated)")


def _refusal(error: Exception) -> str:
    return f"the step failed: {place_of(error)}"


def _all_refused(samples: Samples, reason: str) -> Refused:
    return Refused(reason, {sample.event_id: reason for sample in samples})
