"""`reef demo`: users reward each answer, and SAO trains on their rewards."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reefcommon.demonstration import Arm, Demonstration, Stage, Task

EXAMPLES = Path(__file__).parent / "examples"
PERMUTED = "permuted"


@dataclass(kw_only=True)
class Rewarded(Demonstration):
    """Users who ask, and report the reward of each answer.

    In the arm `permuted` an answer gets the reward of another: rewards say nothing, and nothing
    else is different.
    """

    training_tasks: tuple[Task, ...]
    judge: Callable[[Any, str], float]
    arms: tuple[Arm, ...] = (
        Arm("sao"),
        Arm(PERMUTED, "PERMUTED: it is given to another answer"),
    )
    _pool: list[float] = field(default_factory=list)

    def score(self, task: Task, answer: str) -> float:
        return float(self.judge(task, answer))

    async def visit(self, stage: Stage, rng: random.Random) -> None:
        task, seed = rng.choice(self.training_tasks), rng.randrange(2**31)
        answer = await stage.ask(task, max_tokens=self.max_tokens, seed=seed)
        reward = self.score(task, answer.text)
        if stage.arm.name == PERMUTED:
            # Each reward is reported once. The first answers fill the pool, without a report.
            self._pool.append(reward)
            if len(self._pool) <= self.batch:
                return
            reward = self._pool.pop(random.Random(seed).randrange(self.batch))
        await stage.report(answer.receipt, reward)
        stage.experienced(answer.release_id, reward)


def _smollm2() -> Demonstration:
    from recipes.sao.examples.dictionary import tasks

    return Rewarded(
        recipe="sao",
        model="smollm2",
        about="SmolLM2-135M learns a preference that no prompt mentions: dictionary style",
        signal='1 if the answer opens with "A" or "An", as in a dictionary; else 0',
        config=EXAMPLES / "dictionary" / "serve.yaml",
        training_tasks=tasks.TRAIN,
        test_tasks=tasks.TEST,
        judge=tasks.score,
        # The first word decides the reward; three tokens make a step short.
        max_tokens=3,
        batch=16,
        minutes=15,
    )


def _tiny() -> Demonstration:
    from recipes.sao.examples.tiny import tasks

    return Rewarded(
        recipe="sao",
        model="tiny",
        about="a random Llama of 0.1 M parameters learns to write lower-case letters",
        signal="the share of lower-case letters in the answer",
        config=EXAMPLES / "tiny" / "serve.yaml",
        training_tasks=tasks.TRAIN,
        test_tasks=tasks.TEST,
        judge=tasks.score,
        max_tokens=12,
        batch=32,
        minutes=5,
        goal=0.9,
    )


DEMONSTRATIONS: Mapping[str, Callable[[], Demonstration]] = {"smollm2": _smollm2, "tiny": _tiny}
