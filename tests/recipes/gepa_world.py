"""A synthetic task for GEPA: scores and new texts are functions of texts alone."""

import re
from dataclasses import dataclass, field
from types import SimpleNamespace

from recipes.gepa.knobs import GepaKnobs
from recipes.gepa.recipe import GepaRecipe
from recipes.gepa.texts import texts_of
from reefcommon.evaluator import as_tasks
from reefcommon.ids import digest
from reefcommon.recipe_context import Reply, TrialResult

TRAIN = [f"train {number}" for number in range(7)]
VALIDATION = [f"validation {number}" for number in range(6)]
LEVELS = 5


def score(texts, task) -> float:
    """In fifths, so that candidates often share a front."""
    return int(digest("score", [texts[name] for name in sorted(texts)], task), 16) % LEVELS / LEVELS


def rewritten(component, text, tasks) -> str:
    return "text " + digest("rewritten", component, text, tasks, length=8)


class Store:
    """`State` of a call: writes are kept by the test, or not."""

    def __init__(self, kept=None):
        self.values = dict(kept or {})

    def get(self, key, default=None):
        return self.values.get(key, default)

    def put(self, key, value):
        self.values[key] = value


@dataclass
class Context:
    """What `propose` uses. `minibatches` and `parents` are those of its reflections and trials."""

    store: Store = field(default_factory=Store)
    head: object = None
    components: tuple[str, ...] = ("rules", "skill")
    score: object = staticmethod(score)
    rewritten: object = staticmethod(rewritten)
    minibatches: list = field(default_factory=list)
    reflections: list = field(default_factory=list)
    answers: int = 0

    @property
    def models(self):
        return {"proposer": SimpleNamespace(chat=self._chat)}

    async def _chat(self, messages, *, purpose, **params):
        shown = messages[-1]["content"]
        parts = re.findall(r"<(\w+) [0-9a-f]{32}>\n(.*?)\n</\1 ", shown, re.DOTALL)
        component = purpose.removeprefix("reflect on ")
        text, tasks = parts[0][1], [body for label, body in parts if label == "input"]
        self.minibatches.append(tasks)
        self.reflections.append((component, text))
        return [Reply(f"Better:\n```\n{self.rewritten(component, text, tasks)}\n```")]

    async def trial(self, candidates, tasks, *, samples=1, seed=0):
        (tree,) = candidates
        self.answers += len(tasks)
        given = [task.messages[-1]["content"] for task in as_tasks(tasks)]
        scores = tuple(float(self.score(texts_of(tree, self.components), task)) for task in given)
        return [TrialResult(scores, ("answer",) * len(given), ("words",) * len(given))]


def recipe(**knobs) -> GepaRecipe:
    return GepaRecipe(GepaKnobs(**{"validation": VALIDATION, "train": TRAIN, **knobs}))


def history(store):
    """Texts, parents and scores of the archive."""
    found = store.values["search"]["search"]["candidates"]
    return [(each["texts"], each["parent"], list(each["scores"].values())) for each in found]
