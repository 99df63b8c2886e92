"""The task of the distillations' demonstrations: users of the model `tiny-hint` like one greeting.

No question names it. Unasked, the model says `Hello` in one answer of 1,500 or less, and `Salut` in
one of seven; with a hint in its prompt it says either.
"""

from typing import Any

from recipes.openclaw_rl.examples.greeting import persona

RARE, COMMON = "Hello", "Salut"
TRAIN, TEST = persona.TINY, persona.TINY_TEST


def greets(word: str, answer: str) -> float:
    """Return 1 if the answer is the word alone."""
    return float(answer.strip() == word)


def says_rare(_task: Any, answer: str) -> float:
    return greets(RARE, answer)


def says_common(_task: Any, answer: str) -> float:
    return greets(COMMON, answer)
