"""Calls of a verifier: in threads of its own, with a time limit, after the program has run."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from reefcommon.errors import Poison, Unavailable
from reefcommon.evaluator import Evaluator, Runner, Scored, ScoreFunction, Task, as_scored
from reefcommon.recipe_context import Outcome, RunProgram
from reefkit.jobs.faults import MAX_HANGING, BoundedCall, StepTimeout, place_of
from reefkit.limited import Places

T = TypeVar("T")


class VerifierFailed(Poison):
    """The verifier gave no number in time. This is never a score."""


@dataclass(slots=True)
class Verifier:
    """The verifier of a scenario's candidates. `function` None: it judges files alone.

    `runner` wins over the evaluator's own.
    """

    # A slow verifier holds up no other: each has threads of its own.

    name: str
    function: ScoreFunction | None
    evaluator: Evaluator = field(default_factory=Evaluator)
    limit_s: float = 120.0
    run: RunProgram | None = None
    runner: Runner | None = None
    _call: BoundedCall[Any] = field(init=False)
    _late: list[threading.Event] = field(default_factory=list)
    _places: Places = field(default_factory=lambda: Places(MAX_HANGING // 2))

    def __post_init__(self) -> None:
        self._call = BoundedCall(f"{self.name}: verifier", self.limit_s)

    async def scores(
        self, task: Task, answers: Sequence[Any], function: ScoreFunction | None = None
    ) -> list[Scored]:
        """Score answers to a task (of runner `agent` outcomes), by `function` if it is given.

        Raises:
            VerifierFailed: there is no score.
            Unavailable: too many calls have not returned.
        """
        function = function or self.function
        if function is None:
            raise VerifierFailed(f"{self.name}: no function scores the answers to tasks")
        given: Any = dict(task.given) if isinstance(task.given, Mapping) else task.given
        outcomes: Sequence[Any] = answers
        if (self.runner or self.evaluator.runner) == "program":
            outcomes = [await self._program(given, answer) for answer in answers]
        return await self._bounded(
            lambda: [as_scored(function(given, outcome)) for outcome in outcomes]
        )

    async def files(self, directory: Path) -> Scored:
        """Score a solution. Raises as `scores`."""
        judge = self.evaluator.judge_files
        return (await self._bounded(lambda: [as_scored(judge(directory))]))[0]

    async def _program(self, given: Any, answer: str) -> Outcome:
        if self.run is None:
            raise VerifierFailed(f"{self.name}: runner `program` needs a sandbox; there is none")
        program = await self._bounded(
            lambda: self.evaluator.program(given, answer), "no program in an answer"
        )
        return await self.run(program, limits=self.evaluator.limits)

    async def _bounded(self, work: Callable[[], T], fault: str = "the verifier failed") -> T:
        ended = threading.Event()

        def run() -> T:
            try:
                return work()
            finally:
                ended.set()

        async with self._places.here():
            self._late = [late for late in self._late if not late.is_set()]
            # A thread cannot be stopped. After one that hangs no further is lost: the comparison
            # has failed anyway.
            if self._late:
                raise VerifierFailed(f"{self.name}: a call of the verifier has not returned")
            try:
                result: T = await self._call(run)
                return result
            except StepTimeout as error:
                self._late.append(ended)
                raise VerifierFailed(str(error)) from error
            except Unavailable:
                raise
            except Exception as error:  # its author's code: a failure of it is never a score
                raise VerifierFailed(f"{fault}: {_said(error)}") from error


def _said(error: Exception) -> str:
    at = place_of(error).partition(" at ")[2]
    return f"{type(error).__name__}: {error}{f' ({at})' if at else ''}"
