"""The state of a GEPA search: candidates with their scores, fronts, and one random stream. Pure."""

# Written to agree with PyPI's `gepa` number for number; tests/recipes/test_gepa_fidelity.py runs
# both side by side.

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Texts = Mapping[str, str]
"""Component -> text."""
Front = set[int]
Select = Literal["fronts", "best"]


@dataclass(slots=True)
class Candidate:
    """Texts with the scores of a full validation, by task. `cursor`: its next component."""

    texts: dict[str, str]
    parent: int | None
    scores: dict[str, float]
    cursor: int = 0
    turned_down: str = ""

    @property
    def mean(self) -> float:
        # A plain sum: `gepa` breaks ties by it.
        return sum(self.scores.values()) / len(self.scores)


@dataclass(slots=True)
class Search:
    """`spent` counts answers to tasks; `shuffled` is the order of the tasks in this `epoch`."""

    seed: int
    candidates: list[Candidate] = field(default_factory=list)
    iteration: int = -1
    spent: int = 0
    epoch: int = -1
    tasks: int = 0
    shuffled: list[str] = field(default_factory=list)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    # ------------------------------------------------------------------ parents

    def fronts(self) -> dict[str, Front]:
        """Return the candidates with the best score of each task, from the stored scores."""
        best: dict[str, float] = {}
        found: dict[str, Front] = {}
        for index, candidate in enumerate(self.candidates):
            for task, score in candidate.scores.items():
                if task not in best or score > best[task]:
                    best[task], found[task] = score, {index}
                elif score == best[task]:
                    found[task].add(index)
        return found

    def weights(self) -> dict[int, int]:
        """Return the number of fronts of each candidate that none dominates."""
        fronts = self.fronts()
        gone = dominated(fronts, [candidate.mean for candidate in self.candidates])
        count: dict[int, int] = {}
        for front in fronts.values():
            # A new set, not a filter of the old: the order of its members is that of `gepa`.
            for index in {each for each in front if each not in gone}:
                count[index] = count.get(index, 0) + 1
        return count

    def draw(self, select: Select = "fronts") -> int:
        """Return the parent of the next iteration."""
        if select == "best":
            return self.best()
        return self.rng.choice([index for index, n in self.weights().items() for _ in range(n)])

    def best(self) -> int:
        """Return the candidate with the highest mean, the oldest of equals."""
        means = [candidate.mean for candidate in self.candidates]
        return means.index(max(means))

    def index_of(self, texts: Texts) -> int | None:
        equal = (i for i, each in enumerate(self.candidates) if each.texts == texts)
        return next(equal, None)

    # ------------------------------------------------------------------ tasks and components

    def minibatch(self, names: Sequence[str], size: int) -> list[str]:
        """Return the tasks of this iteration. Each epoch is a new order of all."""
        start = self.iteration * size
        epoch = 0 if self.epoch == -1 else start // max(len(self.shuffled), 1)
        if not self.shuffled or self.tasks != len(names) or epoch > self.epoch:
            self.epoch = epoch
            self._shuffle(names, size)
        place = start % len(self.shuffled)
        return self.shuffled[place : place + size]

    def component(self, parent: int) -> str:
        """Return the component that is rewritten next; the parent's turn moves on."""
        candidate = self.candidates[parent]
        names = list(candidate.texts)
        name = names[candidate.cursor % len(names)]
        candidate.cursor = (candidate.cursor + 1) % len(names)
        return name

    def add(self, texts: Texts, parent: int | None, scores: Mapping[str, float]) -> int:
        cursor = 0 if parent is None else self.candidates[parent].cursor
        self.candidates.append(Candidate(dict(texts), parent, dict(scores), cursor))
        return len(self.candidates) - 1

    def _shuffle(self, names: Sequence[str], size: int) -> None:
        self.tasks, self.shuffled = len(names), list(names)
        self.rng.shuffle(self.shuffled)
        count = Counter(self.shuffled)
        # The last minibatch is filled up with tasks that stand least often.
        while len(self.shuffled) % size:
            rarest = count.most_common()[-1][0]
            self.shuffled.append(rarest)
            count[rarest] += 1

    # ------------------------------------------------------------------ JSON

    def state(self) -> dict[str, Any]:
        version, numbers, gauss = self.rng.getstate()
        names = ("seed", "iteration", "spent", "epoch", "tasks", "shuffled")
        return {
            **{name: getattr(self, name) for name in names},
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "rng": [version, list(numbers), gauss],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> "Search":
        given = dict(state)
        version, numbers, gauss = given.pop("rng")
        candidates = [Candidate(**each) for each in given.pop("candidates")]
        search = cls(**given, candidates=candidates)
        search.rng.setstate((version, tuple(numbers), gauss))
        return search


def dominated(fronts: Mapping[str, Front], means: Sequence[float]) -> Front:
    """Return the candidates without a front of their own, the weakest removed first.

    A candidate is dominated if each of its fronts has another candidate that remains.
    """
    order = sorted({i: None for front in fronts.values() for i in front}, key=means.__getitem__)
    gone: Front = set()
    for index in order:
        if all(front - gone - {index} for front in fronts.values() if index in front):
            gone.add(index)
    return gone
