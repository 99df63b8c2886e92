"""`python -m tests.methods.gepa`: a task with two fronts, by GEPA and by hill climbing.

Half of the tasks are of kind x, half of kind y. A text that speaks of one kind is good at it and
useless at the other; a text that speaks of both in general is in between, and better on average. The
best text is reached from a specialist alone. A scripted proposer writes advice on the kind that most
tasks of its minibatch have; at each call it fails to with probability 0.4. All arms have the same
proposer, tasks and number of answers:

    fronts      parents are drawn from the fronts: a specialist stays a parent
    best        the candidate with the highest mean is always the parent
"""

import argparse
import asyncio
import random
from typing import Any

from recipes.gepa.knobs import GepaKnobs
from recipes.gepa.recipe import GepaRecipe
from recipes.gepa.search import Search
from tests.methods.table import arm, paired, show, tell
from tests.recipes.gepa_world import Context

KINDS = ("x", "y")
TRAIN = [f"{kind} {number}" for number in range(6) for kind in KINDS]
VALIDATION = [f"{kind} {number}" for number in range(6, 10) for kind in KINDS]
ARMS = ("fronts", "best")
START, BETWEEN, GOOD, USELESS = 0.2, 0.5, 0.9, 0.0
FAILS = 0.4


def score(texts: dict[str, str], task: str) -> float:
    advice = set(texts["rules"].split()) & {"x", "y", "general"}
    if not advice:
        return START
    return BETWEEN if "general" in advice else GOOD if task[0] in advice else USELESS


def proposer(seed: int) -> Any:
    rng = random.Random(seed)

    def rewritten(_component: str, text: str, tasks: list[str]) -> str:
        known, kinds = set(text.split()), [task[0] for task in tasks]
        most = max(KINDS, key=kinds.count)
        if rng.random() < FAILS:
            return f"{text} again".strip()
        if not known & {"x", "y", "general"}:
            return "general"
        # It forgets what was said in general; of the other kind it keeps what it finds.
        return " ".join(sorted({most} | (known & {"x", "y"})))

    return rewritten


def run(select: str, seed: int, calls: int) -> dict[str, float]:
    knobs = {"select": select, "seed": seed, "max_metric_calls": calls, "iterations": 1000}
    tasks = {"train": TRAIN, "validation": VALIDATION, "components": ("rules",)}
    ctx = Context(components=("rules",), score=score, rewritten=proposer(seed))
    recipe = GepaRecipe(GepaKnobs(**tasks, **knobs))
    asyncio.run(recipe.propose(ctx, (), (), ()))
    search = Search.restore(ctx.store.values["search"]["search"])
    weights = search.weights()
    special = [
        i
        for i, each in enumerate(search.candidates)
        if each.texts["rules"].split() in (["x"], ["y"])
    ]
    parents = {each.parent for each in search.candidates}
    return {
        "best mean": search.candidates[search.best()].mean,
        "specialists found": len(special),
        "a specialist was a parent": float(bool(parents & {*special})),
        "candidates on a front": len(weights),
        "answers": search.spent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--calls", type=int, default=400, help="answers to tasks of each arm")
    given = parser.parse_args()
    found = {}
    for name in ARMS:
        tell(f"{name}: {len(given.seeds)} seeds of {given.calls} answers")
        found[name] = {seed: run(name, seed, given.calls) for seed in given.seeds}
    means = [[each["best mean"] for each in found[name].values()] for name in ARMS]
    show({**{name: arm(found[name]) for name in ARMS}, "fronts - best": paired(*means)})


if __name__ == "__main__":
    main()
