"""`reef demo --recipe sdft`: users report how it is done; an older skill is measured beside it."""

from typing import Any

from recipes.distillation.greeting import RARE, TEST, greeting, greets
from reefcommon.demonstration import Arm, Demonstration, Factories, Task, as_messages

_WISH = "Please greet me with {} first."
_WORDS = ("Dear", "Salut", "Yo")
# The new skill unasked, and an old one: to heed a wish. Nobody trains or reports the old one.
NEW = TEST[:12]
OLD: tuple[Task, ...] = tuple(
    (
        {"role": "user", "content": question},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": _WISH.format(_WORDS[number % len(_WORDS)])},
    )
    for number, question in enumerate(TEST[12:])
)


def learnt_or_kept(task: Any, answer: str) -> float:
    said = as_messages(task)
    if len(said) == 1:
        return greets(RARE, answer)
    return float(said[-1]["content"] == _WISH.format(answer.strip()))


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
        about="a Llama of 0.1 M parameters learns from demonstrations, and keeps what it knew",
        signal='1 if an answer is "Hello", or (half of the questions) the word that was wished for',
        test_tasks=(*NEW, *OLD),
        told=RARE,
        batch=32,
        goal=0.6,
    )


DEMONSTRATIONS: Factories = {"tiny": _tiny}
