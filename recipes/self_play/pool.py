"""Tasks that were played: their regret and their bands."""

# Pure.

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from recipes.self_play.domain import Task

Band = Literal["mastered", "frontier", "out_of_reach"]
MASTERED_ABOVE, OUT_OF_REACH_BELOW = 0.9, 0.1
CAPACITY = 1000


def band_of(plain: float) -> Band:
    """Return the band of a mean score without hints."""
    if plain > MASTERED_ABOVE:
        return "mastered"
    return "out_of_reach" if plain < OUT_OF_REACH_BELOW else "frontier"


@dataclass(frozen=True, slots=True)
class Known:
    """A task as it was last played. `plain` and `hinted`: mean scores without and with the hint."""

    task: Task
    round: int
    plain: float
    hinted: float

    @property
    def regret(self) -> float:
        return self.hinted - self.plain

    @property
    def band(self) -> Band:
        return band_of(self.plain)


def known(task: Task, number: int, plain: Sequence[float], hinted: Sequence[float]) -> Known:
    return Known(task, number, fmean(plain), fmean(hinted or plain))


class Pool:
    """The last play of each task, at most `CAPACITY` tasks."""

    def __init__(self, tasks: Sequence[Known] = ()) -> None:
        self.tasks = {one.task.text: one for one in tasks}

    def add(self, played: Sequence[Known]) -> None:
        for one in played:
            self.tasks.pop(one.task.text, None)  # again at the end: the oldest play goes first
            self.tasks[one.task.text] = one
        for text in list(self.tasks)[: max(len(self.tasks) - CAPACITY, 0)]:
            del self.tasks[text]

    def frontier(self, count: int) -> list[Known]:
        """Return tasks within reach, the greatest regret first."""
        within = [one for one in self.tasks.values() if one.band == "frontier"]
        return sorted(within, key=lambda one: (-one.regret, one.task.text))[:count]

    def since(self, number: int) -> set[str]:
        """Return the texts of tasks played in round `number` or later."""
        return {text for text, one in self.tasks.items() if one.round >= number}

    def state(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self.tasks.values()]


def restored(state: Sequence[Mapping[str, Any]]) -> Pool:
    return Pool([Known(**{**stored, "task": Task(**stored["task"])}) for stored in state])
