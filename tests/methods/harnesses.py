"""`python -m tests.methods.harnesses`: four harness recipes learn the style of a house from users.

Users ask for prices, dates and names (recipes/reflection/examples/house.py), and say what they
wanted. The served model is scripted: it knows no style, and obeys a rule in its prompt with
probability 0.8. The proposer is scripted too: with probability 0.4 it writes advice of no use,
otherwise it acts on the complaint that it reads most often. The host is the real one in memory; a
candidate is released if it wins 15 paired tasks by `paired_confidence`. The figure is the share of
right answers to 15 other tasks, of which each is asked eight times: at the end, and its mean over
the run, measured after each window of four reports.

Each recipe has a control, `guess`: users report scores without words, and a proposer that reads no
complaint takes one of 24 pieces of advice by chance, three of which are the style.
"""

import argparse
import asyncio
import json
import logging
import random
import tempfile
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import structlog

from recipes.ace.recipe import AceKnobs, AceRecipe
from recipes.gepa.knobs import GepaKnobs
from recipes.gepa.recipe import GepaRecipe
from recipes.harness_evolve.recipe import HarnessEvolveKnobs, HarnessEvolveRecipe
from recipes.reflection.examples import house
from recipes.reflection.examples.models import editor, house_model, library, reviewer, rewriter
from recipes.skill_evolution.recipe import SkillEvolutionKnobs, SkillEvolutionRecipe
from tests.methods.table import arm, paired, show, tell
from tests.recipes.harness_world import HarnessWorld

WINDOW, FAILS, OBEYS = 4, 0.4, 0.8
MEASURED = house.tasks_of(31, ("Lea Dunn", "Gus Hale", "Fay Rowe", "Ned Pike", "Joy Vale"))
USELESS = tuple(f"Remember point {number} of the handbook." for number in range(21))
RECIPES: dict[str, Any] = {
    "harness_evolve": (
        lambda: HarnessEvolveRecipe(HarnessEvolveKnobs(batch_size=WINDOW)),
        editor,
    ),
    "gepa": (
        lambda: GepaRecipe(
            GepaKnobs(validation=house.VALIDATION, batch_size=WINDOW, max_metric_calls=100_000)
        ),
        rewriter,
    ),
    "skill_evolution": (
        lambda: SkillEvolutionRecipe(SkillEvolutionKnobs(batch_size=WINDOW)),
        library,
    ),
    "ace": (lambda: AceRecipe(AceKnobs(batch_size=WINDOW)), reviewer),
}
DECIDES = ("You look after", "A model does tasks", "You keep")
"""The beginnings of the questions whose answers change the harness."""


class Proposer:
    """A scripted proposer that sometimes fails, and guesses if it reads no complaint."""

    def __init__(self, answer: Any, seed: int, *, guesses: bool) -> None:
        self.answer, self.rng, self.guesses, self.calls = answer, random.Random(seed), guesses, 0

    def __call__(self, messages: Any, seed: int) -> str:
        self.calls += 1
        if not messages[0]["content"].startswith(DECIDES):
            found: str = self.answer(messages, seed)
            return self._insight(found) if self.guesses else found
        if self.guesses:
            return self._advise(messages, self.rng.choice((*house.WORDS.values(), *USELESS)))
        if self.rng.random() < FAILS:
            return self._advise(messages, self.rng.choice(USELESS))
        return str(self.answer(messages, seed))

    def _insight(self, found: str) -> str:
        # Without an insight the curator is not asked, and cannot guess.
        told = json.loads(found) if found.startswith("{") else {}
        return json.dumps({**told, "insight": "Unclear."}) if "insight" in told else found

    def _advise(self, messages: Any, advice: str) -> str:
        """Return the answer that makes a harness of this advice, in the form of the question."""
        task, shown = messages[0]["content"], messages[-1]["content"]
        name = f"advice-{self.rng.randrange(10**6)}"
        if task.startswith("A model does tasks"):
            text = shown.partition("<text ")[2].partition("\n")[2].partition("\n</text")[0]
            return f"```\n{text}\n{advice}\n```"
        if task.startswith("You keep"):
            return json.dumps({"add": [advice]})
        if "skills of an assistant" in task:
            about = {"name": name, "description": "Of the house."}
            return json.dumps({"action": "create", "text": advice, **about})
        config = {"kind": "rules", "config": {"text": advice}}
        return json.dumps({"op": "create", "id": name, "reason": "advice", **config})


async def play(
    name: str, seed: int, reports: int, home: Path, *, guesses: bool
) -> dict[str, float]:
    build, answer = RECIPES[name]
    proposer, users = Proposer(answer, seed, guesses=guesses), random.Random(seed)
    served = partial(house_model, obeys=OBEYS)
    world = HarnessWorld(
        home, build(), proposer, served=served, policy="paired_confidence", samples=4
    )
    world.asked = 1000 * seed  # each seed has users of its own
    measured = partial(world.mean, MEASURED, range(8))
    before, course = measured(), []
    for _ in range(reports // WINDOW):
        for task in users.choices(house.TRAIN, k=WINDOW):
            if name == "skill_evolution":
                world.session(task, words="Thank you." if guesses else None)
            else:
                world.report(task, **({"feedback": None} if guesses else {}))
        await world.run()
        course.append(measured())
    figures = {
        "right before": before,
        "right after": course[-1],
        "right, mean over the run": fmean(course),
        "releases": world.outcomes.count("ReleasePublished"),
        "rejected": world.outcomes.count("ReleaseRejected"),
        "proposer's calls": proposer.calls,
    }
    world.close()
    return figures


def run(name: str, seed: int, reports: int, *, guesses: bool = False) -> dict[str, float]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="reef-harnesses-") as home:
        return asyncio.run(play(name, seed, reports, Path(home), guesses=guesses))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--reports", type=int, default=60, help="of each run")
    parser.add_argument("--recipes", nargs="+", default=[*RECIPES], choices=[*RECIPES])
    given = parser.parse_args()
    table: dict[str, Any] = {}
    for name in given.recipes:
        means = []
        for guesses in (False, True):
            tell(f"{name}{', guess' if guesses else ''}: {given.reports} reports")
            found = {s: run(name, s, given.reports, guesses=guesses) for s in given.seeds}
            table[f"{name}, guess" if guesses else name] = arm(found)
            means.append([figures["right, mean over the run"] for figures in found.values()])
        table[f"{name} - guess, mean over the run"] = paired(*means)
    show(table)


if __name__ == "__main__":
    main()
