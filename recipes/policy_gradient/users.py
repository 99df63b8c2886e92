"""Users of a demonstration who ask, and report the reward of each answer."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reefcommon.demonstration import Arm, Demonstration, Stage, Task

PERMUTED = Arm("permuted", "PERMUTED: it is given to another answer")


def sao_arm(about: str, *left_out: str) -> Arm:
    """Return SAO as a control, without the knobs that it does not have."""
    knobs = {"critic_lr": 1e-2, "critic_warmup_steps": 1, **dict.fromkeys(left_out)}
    return Arm("sao", about, knobs, recipe="recipes.sao.recipe:SAORecipe")


@dataclass(kw_only=True)
class Rewarded(Demonstration):
    """Users with a question, which they ask `attempts` times at once.

    In the arm `permuted` an answer gets the reward of another: rewards say nothing, and nothing
    else is different. `told`: a demonstration that goes with each report.
    """

    training_tasks: tuple[Task, ...]
    reward: Callable[[Any, str], float]
    attempts: int = 1
    told: str = ""
    _pool: list[float] = field(default_factory=list)

    def score(self, task: Task, answer: str) -> float:
        return float(self.reward(task, answer))

    async def visit(self, stage: Stage, rng: random.Random) -> None:
        task = rng.choice(self.training_tasks)
        seeds = [rng.randrange(2**31) for _ in range(self.attempts)]
        await asyncio.gather(*(self._attempt(stage, task, seed) for seed in seeds))

    async def _attempt(self, stage: Stage, task: Task, seed: int) -> None:
        answer = await stage.ask(task, max_tokens=self.max_tokens, seed=seed)
        reward = self.score(task, answer.text)
        if stage.arm.name == PERMUTED.name:
            # Each reward is reported once. The first answers fill the pool, without a report.
            self._pool.append(reward)
            if len(self._pool) <= self.batch:
                return
            reward = self._pool.pop(random.Random(seed).randrange(self.batch))
        told = {"demonstration": self.told} if self.told else None
        await stage.report(answer.receipt, reward, told)
        stage.experienced(answer.release_id, reward)
