"""The step process."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Value


class StateDamaged(Poison):
    """A step's start cannot be used; it was set aside."""


class CannotStart(Unavailable):
    """The learner cannot be built, or brought to the start. No sample is at fault: they wait."""


class StepRequest(Value):
    """A step, as paths of this machine.

    `adopt`: an adapter for the policy, or "base". `batch`: a file of units, see
    `services.trainer.batches`. `out` None: only try the step.
    """

    job_id: str
    state: Path | None
    actor: Path | None
    adopt: str | None
    batch: Path
    out: Path | None


@dataclass(frozen=True, slots=True)
class StepReply:
    """The result of a step: its state is in `out`, the adapter in `out/adapter`."""

    step: int
    proposes: bool
    metrics: Mapping[str, float]
    skipped: bool = False


class StepProcess(Protocol):
    """The process that holds the tensors of a binding."""

    async def step(self, request: StepRequest) -> StepReply:
        """Make a step.

        Raises:
            StateDamaged: the start cannot be used.
            CannotStart: the learner does not come up at the start.
            Poison: the batch cannot be trained on, or the learner raised.
            Transient: the process died or took too long.
        """

    async def stop(self) -> None:
        """End the process; the next step starts another."""
