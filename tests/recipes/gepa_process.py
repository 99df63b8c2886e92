"""`python -m tests.recipes.gepa_process HOME PAUSE_S`: a GEPA search on a host that may be killed.

Each candidate is right on three tasks of six, so that the archive grows and no candidate is better on
average: all of the search is one window. Every answer takes PAUSE_S, and is told in HOME/asked.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from recipes.gepa.knobs import GepaKnobs
from recipes.gepa.recipe import GepaRecipe
from reefcommon.evaluator import as_tasks
from reefcommon.events import SampleReady
from reefcommon.ids import digest
from tests.recipes.harness_world import HarnessWorld

TASKS = [{"id": str(number), "prompt": f"task {number}"} for number in range(6)]


def score(task, answer) -> tuple[float, str]:
    return float((int(answer) - int(task["id"])) % len(TASKS) < 3), "words"


def served(messages, _seed) -> str:
    told = str(messages[0]["content"]) if messages[0]["role"] == "system" else ""
    return str(int(digest(told), 16))


def proposer(messages, _seed) -> str:
    # A model: another answer each time that it is asked the same.
    return f"```\nadvice {digest(messages[-1]['content'], time.time_ns(), length=8)}\n```"


def search(home: Path, pause_s: float) -> dict:
    def told(name, answer):
        def ask(messages, seed):
            time.sleep(pause_s)
            text = answer(messages, seed)
            with (home / "asked").open("a") as log:
                log.write(f"{name} {digest(messages, seed)}: {' '.join(text.strip('`').split())}\n")
            return text

        return ask

    knobs = GepaKnobs(
        validation=TASKS,
        train=TASKS,
        batch_size=1,
        iterations=20,
        minibatch_size=3,
        max_metric_calls=999,
        seed=3,
    )
    world = HarnessWorld(
        home, GepaRecipe(knobs), told("proposer", proposer), served=told("served", served), tasks=TASKS,
        score="tests.recipes.gepa_process:score",
    )  # fmt: skip
    world.asked = 1
    (task,) = as_tasks(TASKS[:1])
    world._unit(SampleReady, task, "said", score=0.0, feedback="words")
    asyncio.run(world.run())
    state = world.state("search")["search"]
    world.close()
    return state


if __name__ == "__main__":
    found = search(Path(sys.argv[1]), float(sys.argv[2]))
    sys.stdout.write("\n" + json.dumps(found) + "\n")
