"""The task of the distillations' demonstrations: users of the model `tiny-hint` like one greeting.

No question names it. Unasked, the model says `Hello` in one answer of 1,500 or less, and `Salut` in
one of seven; with a hint in its prompt it says either.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.openclaw_rl.examples.greeting import persona
from recipes.policy_gradient.users import Rewarded
from reefcommon.demonstration import Arm

RARE, COMMON = "Hello", "Salut"
TRAIN, TEST = persona.TINY, persona.TINY_TEST


def greets(word: str, answer: str) -> float:
    """Return 1 if the answer is the word alone."""
    return float(answer.strip() == word)


def greeting(
    recipe: str,
    arms: tuple[Arm, ...],
    reward: Callable[[Any, str], float],
    *,
    kind: type[Rewarded] = Rewarded,
    **stated: Any,
) -> Rewarded:
    """Return a demonstration of a recipe; `stated` has its words and its batch."""
    return kind(
        recipe=recipe,
        model="tiny-hint",
        config=Path(__file__).parents[1] / recipe / "examples" / "greeting" / "serve.yaml",
        arms=arms,
        training_tasks=TRAIN,
        reward=reward,
        max_tokens=6,
        minutes=3,
        **{"test_tasks": TEST, "goal": 0.8, **stated},
    )


def says_rare(_task: Any, answer: str) -> float:
    return greets(RARE, answer)


def says_common(_task: Any, answer: str) -> float:
    return greets(COMMON, answer)
