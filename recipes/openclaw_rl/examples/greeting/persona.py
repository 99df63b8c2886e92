"""A user who wants to be greeted with Hello, and does not say so before he has seen an answer."""

# No first question, and none of the held-out questions, names the wish: only a complaint does,
# after an answer that began otherwise.

import random
import re

WISH = "Hello"
COMPLAINTS = (
    f"Please greet me with {WISH} first.",
    f"I like to be greeted with {WISH} first.",
    f"Not like that: greet me with {WISH} first.",
)
THANKS = (
    "Thanks, that is how I like to be greeted.",
    "Thank you for the greeting!",
    "Thanks, just right.",
)
_FIRST_WORD = re.compile(rf"\W*{WISH}\b")


def greeted(answer: str) -> bool:
    """Return whether the first word of an answer is the greeting."""
    return _FIRST_WORD.match(answer) is not None


def reply(answer: str, rng: random.Random) -> str:
    """Return the user's next words."""
    return rng.choice(THANKS if greeted(answer) else COMPLAINTS)


NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jill", "Kai", "Lea",
    "Max", "Nora", "Otto", "Pia", "Quin", "Rosa", "Sam", "Tess", "Uma", "Vera", "Will", "Zoe",
)  # fmt: skip
HELDOUT_NAMES = (
    "Abel", "Bea", "Carl", "Dora", "Emil", "Fay", "Gina", "Hugo", "Ines", "Jan", "Kim", "Lou",
    "Mia", "Nils", "Olga", "Paul", "Rita", "Sven", "Tom", "Ugo", "Vic", "Wim", "Xena", "Yara",
)  # fmt: skip
TINY = tuple(f"I am {name}." for name in NAMES)
TINY_TEST = tuple(f"I am {name}." for name in HELDOUT_NAMES)

THINGS = (
    "a bicycle", "a compass", "a lighthouse", "a violin", "a candle", "a bridge",
    "a clock", "a kite", "a ladder", "a mirror", "a pencil", "a windmill",
    "a telescope", "a hammer", "a balloon", "a garden", "a piano", "a lantern",
)  # fmt: skip
TEST_THINGS = (
    "a teapot", "a wallet", "a rope", "a blanket", "a needle", "a barrel", "a whistle", "a basket",
    "a canoe", "a flute", "a bell", "a chimney", "a helmet", "a magnet", "a notebook", "a wheel",
    "a ribbon", "a sail", "a spoon", "a tent", "a trumpet", "a parachute", "a camera", "a lamp",
)  # fmt: skip
FORMS = ("What is {} for?", "Tell me about {}.", "How do I choose {}?")
SMOLLM2, SMOLLM2_TEST = (
    tuple(FORMS[number % len(FORMS)].format(thing) for number, thing in enumerate(things))
    for things in (THINGS, TEST_THINGS)
)
