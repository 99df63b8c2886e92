"""The teacher's context of each attempt: a right attempt of another rollout. Pure."""

from collections.abc import Callable, Sequence

from recipes.distillation.lessons import TeacherContext
from recipes.distillation.messages import answer_text, prompt_messages, with_demonstration
from recipes.sdpo.knobs import Knobs
from reefcommon.events import Unit


def right_siblings(knobs: Knobs) -> Callable[[Sequence[Unit]], list[TeacherContext]]:
    """Return the function that makes the contexts of a batch. See `siblings`."""
    return lambda units: siblings(units, knobs.success_threshold, knobs.template)


def siblings(units: Sequence[Unit], threshold: float, template: str) -> list[TeacherContext]:
    """Return the teacher's context of each attempt: the first right attempt of another rollout.

    Without a right sibling the weight is 0.
    """
    right: dict[tuple[int, ...], list[tuple[int, str]]] = {}
    for index, unit in enumerate(units):
        text = answer_text(unit)
        if text and unit.reward is not None and unit.reward >= threshold:
            right.setdefault(unit.tokens[: unit.prompt_length], []).append((index, text))
    found: list[TeacherContext] = []
    for index, unit in enumerate(units):
        others = right.get(unit.tokens[: unit.prompt_length], [])
        shown = next((text for other, text in others if other != index), None)
        if shown is None:
            found.append(TeacherContext(weight=0.0))
        else:
            found.append(TeacherContext(with_demonstration(prompt_messages(unit), shown, template)))
    return found
