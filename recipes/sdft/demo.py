"""`reef demo --recipe sdft`: users report how it is done; an older skill is measured beside it."""

from dataclasses import dataclass, replace
from typing import Any

from recipes.distillation.greeting import RARE, TEST, greeting, greets
from recipes.policy_gradient.users import Rewarded
from reefcommon.demonstration import (
    Arm,
    Demonstration,
    Factories,
    Measured,
    Stage,
    Task,
    as_messages,
)

_WISH = "Please greet me with {} first."
_WORDS = ("Dear", "Salut", "Yo")
# The new skill is to say Hello unasked, an old one to heed a wish. No user asks for the old one.
OLD: tuple[Task, ...] = tuple(
    (
        {"role": "user", "content": question},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": _WISH.format(_WORDS[number % len(_WORDS)])},
    )
    for number, question in enumerate(TEST)
)


def learnt_or_kept(task: Any, answer: str) -> float:
    said = as_messages(task)
    if len(said) == 1:
        return greets(RARE, answer)
    return float(said[-1]["content"] == _WISH.format(answer.strip()))


@dataclass(kw_only=True)
class Kept(Rewarded):
    """The figure is that of the new skill; the old one is told beside it and decides nothing."""

    async def measure(self, stage: Stage, release_id: str, measurement: int, n: int) -> Measured:
        new = await super().measure(stage, release_id, measurement, n)
        # With the opposite number its answers have seeds of their own.
        aside = replace(self, test_tasks=OLD)
        old = await Rewarded.measure(aside, stage, release_id, -measurement, n)
        stage.say(f"the old skill: {old.mean:.3f} [{old.low:.3f}, {old.high:.3f}]")
        return new


def _tiny() -> Demonstration:
    imitates = Arm(
        "sft",
        "the demonstrations are imitated",
        {"target": "demonstration", "template": None, "skip_tokens": None},
        recipe="recipes.sft.recipe:SFTRecipe",
    )
    return greeting(
        "sdft",
        (Arm("sdft"), imitates),
        learnt_or_kept,
        about="a Llama of 0.1 M parameters learns from demonstrations; an older skill is told too",
        signal='1 if an answer is "Hello"; of the old skill, if it is the word that was wished for',
        kind=Kept,
        told=RARE,
        batch=32,
    )


DEMONSTRATIONS: Factories = {"tiny": _tiny}
