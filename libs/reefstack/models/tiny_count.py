"""The tiny model after a short training: it knows how far it is in its answer, and no more."""

# Nothing in a random model tells the places of an answer apart, so that a policy on it learns one
# distribution for all. This model writes at each place a digit by chance, or the letter of this
# place, under a prompt by chance. Where letters are masked, its digits are uniform. About 15 s on a
# free core.

import random
from pathlib import Path

from reefstack.models.hf_files import Progress
from reefstack.models.teaching import Pair, write_taught
from reefstack.models.tiny import SEED

LETTERS = "abcdefghijklmnopqrstuvwx"
"""Of the places."""
DIGITS = "0123456789"
STEPS, BATCH, RATE = 160, 32, 4e-3


def pair(draw: random.Random, length: int) -> Pair:
    """Return a prompt of so many characters, and an answer."""
    prompt = "".join(draw.choices(f"{LETTERS.upper()}{LETTERS}yz{DIGITS} .:", k=length))
    answer = (letter if draw.random() < 0.5 else draw.choice(DIGITS) for letter in LETTERS)
    return [{"role": "user", "content": prompt}], "".join(answer), False


def write_tiny_count(directory: Path, progress: Progress) -> None:
    """Write the whole model directory."""
    draw = random.Random(SEED)

    def pairs_of(_step: int) -> list[Pair]:
        length = draw.randrange(12, 64)  # of a batch alike: nothing of it is padding
        return [pair(draw, length) for _ in range(BATCH)]

    what = "teaching the tiny model to count"
    write_taught(directory, STEPS, RATE, pairs_of, lambda share: progress(what, share))
