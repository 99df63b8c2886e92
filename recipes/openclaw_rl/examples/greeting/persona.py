"""A user who wants to be greeted with a word, and does not say so before he has seen an answer."""

# No first question, and none of the held-out questions, names the wish: only a complaint does,
# after an answer that began otherwise.

import random
import re

# Unasked, SmolLM2 begins with Captain in 2 of 100,000 answers (with the hint in 20 of 100): votes
# alone have no answer to praise. Hello, 8 of 10,000, it finds by itself in some hundred answers.
WISH, TINY_WISH = "Captain", "Hello"
COMPLAINTS = (
    "Please greet me with {} first.",
    "I like to be greeted with {} first.",
    "Not like that: greet me with {} first.",
)
THANKS = (
    "Thanks, that is how I like to be greeted.",
    "Thank you for the greeting!",
    "Thanks, just right.",
)


def greeted(answer: str, wish: str) -> bool:
    """Return whether the first word of an answer is the greeting."""
    return re.match(rf"\W*{wish}\b", answer) is not None


def reply(answer: str, wish: str, rng: random.Random) -> str:
    """Return the user's next words."""
    return rng.choice(THANKS if greeted(answer, wish) else COMPLAINTS).format(wish)


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
    "a teapot", "a wallet", "a rope", "a blanket", "a needle", "a barrel", "a whistle",
    "a basket", "a canoe", "a flute", "a bell", "a chimney", "a helmet", "a magnet", "a notebook",
    "a wheel", "a ribbon", "a sail", "a spoon", "a tent", "a trumpet", "a parachute", "a camera",
    "a lamp", "a saddle", "a broom", "a shovel", "a kettle", "a pillow", "a carpet", "a drum",
    "a harp", "an hourglass", "a calendar", "a thermometer", "a microscope", "a tractor",
    "a wagon", "a raft", "a rowboat", "a scooter", "a sled", "a tunnel", "a fountain",
    "a greenhouse", "a windowsill", "a staircase", "a fence", "a cupboard", "a drawer",
    "a bookshelf", "a desk", "a bench", "a stool", "a cradle", "a curtain", "a doormat",
    "a doorbell", "a padlock", "a key", "a zipper", "a button", "a glove", "a scarf",
    "a raincoat", "a boot", "a sandal", "a backpack", "a suitcase", "a purse", "a wristwatch",
    "an umbrella", "a stapler", "a ruler", "a crayon", "a paintbrush", "an easel", "a puzzle",
    "a marble", "a yoyo", "a trampoline", "a seesaw", "a swing", "a hammock",
)  # fmt: skip
FORMS = ("What is {} for?", "Tell me about {}.", "How do I choose {}?")
SMOLLM2, SMOLLM2_TEST = (
    tuple(FORMS[number % len(FORMS)].format(thing) for number, thing in enumerate(things))
    for things in (THINGS, TEST_THINGS)
)
