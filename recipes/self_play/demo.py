"""`reef demo --recipe self-play`: a model sets itself tasks, of which few can be learned."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from recipes.self_play.examples.greetings.domain import DOMAIN, LIKED
from reefcommon.demonstration import Arm, Demonstration, Factories, Measured, Stage, Task
from reefcommon.statistics import independent_seed

EXAMPLES = Path(__file__).parent / "examples"
_TOGETHER = 8  # answers of a request; an engine takes 32
_DESIGN = DOMAIN.designer_messages(())


@dataclass(kw_only=True)
class Played(Demonstration):
    """Nobody visits: the figure is the share of right answers to the tasks that can be learned."""

    users: int = 0

    async def measure(self, stage: Stage, release_id: str, measurement: int, n: int) -> Measured:
        async def asked(task: Task, *draw: int) -> list[str]:
            seed = independent_seed("heldout", stage.seed, measurement, *draw)
            tokens = self.max_tokens
            return await stage.sampled(release_id, task, max_tokens=tokens, n=_TOGETHER, seed=seed)

        async def all_asked(task: Task, number: int) -> list[str]:
            found = await asyncio.gather(*(asked(task, number, draw) for draw in range(n)))
            return [text for texts in found for text in texts]

        tasks = [task for guest in LIKED if (task := DOMAIN.parse(guest))]
        prompts = [_DESIGN, *(DOMAIN.solver_messages(task, hinted=False) for task in tasks)]
        designs, *answers = await asyncio.gather(
            *(all_asked(prompt, number) for number, prompt in enumerate(prompts))
        )
        # These are all tasks of the kind, so that each answer is a draw of its own.
        right = [
            DOMAIN.worth(task, text)
            for task, texts in zip(tasks, answers, strict=True)
            for text in texts
        ]
        chosen = fmean(text.strip() in LIKED for text in designs)
        stage.say(f"proposals that can be learned: {chosen:.2f} of {len(designs)}")
        return Measured.of(right, len(right))


def _tiny() -> Demonstration:
    return Played(
        recipe="self_play",
        model="tiny-hint",
        about="a Llama of 0.1 M parameters sets itself tasks, and learns from its answers",
        signal="1 if the guest is greeted with the word that he likes",
        config=EXAMPLES / "greetings" / "serve.yaml",
        arms=(
            Arm("self_play"),
            Arm(
                "uniform",
                # Of 8 proposals 4 or 5 differ: with the plays about 52 requests a round.
                "tasks by chance, and no fewer requests",
                {"proposer": "uniform", "count": 4, "plays": 13, "hint_plays": 0},
            ),
        ),
        max_tokens=6,
        batch=44,
        minutes=4,
        goal=0.4,
    )


DEMONSTRATIONS: Factories = {"tiny": _tiny}
