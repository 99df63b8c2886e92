"""Requests of the tiny example's users, who like lower-case letters."""

# A random model writes any byte, of which a tenth are lower-case letters: the reward is dense.

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

# The evaluator judges candidates by HELDOUT. The demonstration measures releases by TEST.
HELDOUT: tuple[str, ...] = tuple(f"say {word}" for word in WORDS[:12])

TEST: tuple[str, ...] = tuple(f"{verb} {word}" for verb in ("read", "sing") for word in WORDS[:12])


def score(_task: Any, answer: str) -> float:
    """Return the share of lower-case ASCII letters in the answer; 0 if it is empty."""
    return sum("a" <= letter <= "z" for letter in answer) / len(answer) if answer else 0.0
