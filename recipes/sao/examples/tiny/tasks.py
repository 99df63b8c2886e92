"""What the users of the tiny example ask, and what they like: lower-case letters.

A random model writes any byte; about one in ten is a lower-case letter. The reward is dense, so that it can climb from there.
"""

from typing import Any

WORDS = [
    "river",
    "lemon",
    "stone",
    "cloud",
    "paper",
    "tiger",
    "ocean",
    "bread",
    "candle",
    "winter",
    "garden",
    "silver",
    "mirror",
    "forest",
]

TRAIN: tuple[str, ...] = tuple(f"write {word}" for word in WORDS) + tuple(
    f"spell {word}" for word in WORDS[:10]
)

HELDOUT: tuple[str, ...] = tuple(f"say {word}" for word in WORDS[:12])


def score(task: Any, answer: str) -> float:
    """The share of lower-case ASCII letters in the answer; 0 for an empty one."""
    return sum("a" <= letter <= "z" for letter in answer) / len(answer) if answer else 0.0
