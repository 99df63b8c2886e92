"""Users of a house style, for the demonstrations of the harness recipes with a model."""

# Served model and proposer are scripted (examples/models.py), the stack around them is the real
# one. The figure is asked through the gateway, which puts the release's harness into the chat.

import random
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.reflection.examples import house, models
from recipes.reflection.examples.server import serving
from reefcommon.demonstration import Arm, Demonstration, Factories, Stage, Task

_MEASURED = house.tasks_of(31, ("Lea Dunn", "Gus Hale", "Fay Rowe", "Ned Pike", "Joy Vale"))
SILENT = Arm("silent", "users do not say what they wanted")


@dataclass(kw_only=True)
class HouseStyle(Demonstration):
    """Users who ask, and say how they wanted the answer; in a session if `sessions`."""

    sessions: bool = False

    @contextmanager
    def engine(self) -> Iterator[str]:
        with serving(models.either) as url:
            yield url

    @contextmanager
    def endpoints(self) -> Iterator[Mapping[str, str]]:
        with serving(models.either) as url:
            yield {"proposer": f"{url}/v1"}

    def score(self, task: Task, answer: str) -> float:
        given = next(each for each in _MEASURED if each["prompt"] == task)
        return house.score(given, answer)[0]

    async def visit(self, stage: Stage, rng: random.Random) -> None:
        task = rng.choice(house.TRAIN)
        tag = {"x-reef-tag-session": uuid.UUID(int=rng.getrandbits(128)).hex}
        first: dict[str, Any] = {"role": "user", "content": task["prompt"]}
        seed = rng.randrange(2**31)
        answer = await stage.ask([first], max_tokens=self.max_tokens, seed=seed, headers=tag)
        number, words = house.score(task, answer.text)
        stage.experienced(answer.release_id, number)
        silent = stage.arm.name == SILENT.name
        if not self.sessions:
            told = {name: task[name] for name in ("kind", "wanted")}
            await stage.report(answer.receipt, number, told, None if silent else words)
            return
        said = {"role": "assistant", "content": answer.text}
        last = {"role": "user", "content": "Thank you." if silent else words}
        ends = {**tag, "x-reef-session-end": "true"}
        await stage.ask([first, said, last], max_tokens=self.max_tokens, seed=seed, headers=ends)


def house_style(
    recipe: str,
    about: str,
    *,
    batch: int,
    arms: tuple[Arm, ...] = (SILENT,),
    sessions: bool = False,
) -> Factories:
    """Return the demonstrations of a recipe: a scripted model."""

    def build() -> Demonstration:
        return HouseStyle(
            recipe=recipe,
            model="scripted",
            about=about,
            signal="1 if the answer is in the style of the house, which no question tells",
            config=Path(__file__).parents[1] / recipe / "examples" / "house" / "serve.yaml",
            test_tasks=[task["prompt"] for task in _MEASURED],
            max_tokens=64,
            batch=batch,
            minutes=1.5,
            users=2,
            arms=(Arm(recipe), *arms),
            goal=0.7,
            releases_goal=1,
            sessions=sessions,
        )

    return {"scripted": build}
