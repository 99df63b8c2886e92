"""From units to lessons: a rollout, the prompt that its teacher reads, and a weight."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recipes.distillation.knobs import DistillationKnobs
from recipes.policy_gradient.rollouts import Rollout, rollout
from reefcommon.events import Unit

Prompt = Callable[[Sequence[Mapping[str, Any]], Unit], tuple[int, ...]]
"""(messages, the unit that they stand in for) -> ids."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A rollout as the student and as the teacher reads it; the response is the same.

    `weight` 0: it gives no gradient and stays in the batch's mean.
    """

    student: Rollout
    teacher: Rollout
    weight: float = 1.0

    @property
    def trained(self) -> bool:
        return self.weight != 0 and any(self.student.mask)


@dataclass(frozen=True, slots=True)
class TeacherContext:
    """The prompt of a unit's teacher. Without messages it reads the student's prompt."""

    messages: tuple[dict[str, Any], ...] = ()
    weight: float = 1.0


def given(units: Sequence[Unit]) -> list[TeacherContext]:
    """Return the contexts that the units' signals carry."""
    signals = [unit.signal for unit in units]
    return [TeacherContext(s.teacher, s.weight) if s else TeacherContext() for s in signals]


def lesson(unit: Unit, context: TeacherContext, knobs: DistillationKnobs, prompt: Prompt) -> Lesson:
    """Build the lesson of a unit. Raises Poison if the unit is unfit."""
    read = rollout(unit, knobs.score_range, scored=False)
    student = replace(read, mask=skipped(read.mask, knobs.skip_tokens))
    if not context.messages or not context.weight:
        return Lesson(student, student, context.weight)
    ids = prompt(context.messages, unit)
    return Lesson(student, replace(student, prompt=ids), context.weight)


def skipped(mask: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the mask without its first `count` sampled tokens."""
    left, kept = count, []
    for bit in mask:
        kept.append(bit if left <= 0 else 0)
        left -= bit
    return tuple(kept)


def too_long(one: Lesson, max_tokens: int) -> bool:
    return len(one.teacher.prompt) + len(one.teacher.response) > max_tokens
