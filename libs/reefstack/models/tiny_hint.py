"""The tiny model after a short training: it greets, and obeys a hint about the greeting."""

# A random model obeys nothing, so it cannot be its own teacher. This model greets in seven ways,
# and with any of eight words if the conversation, or a hint in its last message, names it. Unasked
# it says the eighth, `Hello`, in about one answer of 1,500. About 30 s on a free core.

import random
from pathlib import Path

from reefstack.models.hf_files import Progress
from reefstack.models.teaching import Pair, write_taught
from reefstack.models.tiny import SEED

UNASKED = ("Ahoy", "Ciao", "Dear", "Moin", "Salut", "Tach", "Yo")
WORDS = (*UNASKED, "Hello")
STEPS, BATCH, RATE = 240, 32, 4e-3

_WISHES = (
    "Please greet me with {} first.",
    "I like to be greeted with {} first.",
    "Not like that: greet me with {} first.",
)
_HINT = "\n\n[user's hint / instruction]\nGreet the user with {} first."
_SYLLABLES = ("A", "Be", "Co", "Di", "E", "Fa", "Go", "Hu", "I", "Jo", "Ka", "Li", "Mo", "Ni")
_ENDINGS = ("", "a", "n", "la", "ra", "s", "sa", "x")


def conversation(draw: random.Random, wishes: int) -> tuple[list[dict[str, str]], str]:
    """Return the messages of a conversation, and the greeting that shall answer them."""
    name = draw.choice(_SYLLABLES) + draw.choice(_ENDINGS)
    messages = [{"role": "user", "content": f"I am {name}."}]
    answer = draw.choice(UNASKED)
    for _ in range(wishes):
        wish = draw.choice(WORDS)
        messages.append({"role": "assistant", "content": draw.choice(WORDS)})
        messages.append({"role": "user", "content": draw.choice(_WISHES).format(wish)})
        answer = wish
    if draw.random() < 0.5:
        answer = draw.choice(WORDS)
        messages[-1]["content"] += _HINT.format(answer)
    return messages, answer


def write_tiny_hint(directory: Path, progress: Progress) -> None:
    """Write the whole model directory."""
    draw = random.Random(SEED)

    def pairs_of(step: int) -> list[Pair]:
        # Conversations of a batch are of like length: little of it is padding.
        wishes = (0, 0, 1, 0, 2)[step % 5]
        return [(*conversation(draw, wishes), True) for _ in range(BATCH)]

    what = "teaching the tiny model to obey hints"
    write_taught(directory, STEPS, RATE, pairs_of, lambda share: progress(what, share))
