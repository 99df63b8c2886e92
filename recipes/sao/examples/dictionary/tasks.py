"""Requests and preferences of the dictionary example's users.

They like answers that open with "A" or "An". The base model opens about three in ten so.
"""

from typing import Any

FORMS = ("Why do people need {}?", "How do people use {}?", "Tell me about {}.")
THINGS = (
    "a bicycle", "a compass", "a lighthouse", "a violin", "a candle", "a bridge",
    "a clock", "a kite", "a ladder", "a mirror", "a pencil", "a windmill",
)  # fmt: skip
HELDOUT_THINGS = (
    "a telescope", "a hammer", "a balloon", "a garden", "a piano", "a lantern",
    "a saddle", "a kettle", "a drum", "a ship", "a pillow", "a map",
)  # fmt: skip
TEST_THINGS = (
    "a teapot", "a wallet", "a rope", "a blanket", "a needle", "a barrel", "a whistle", "a basket",
    "a canoe", "a flute", "a bell", "a chimney", "a helmet", "a magnet", "a notebook", "a wheel",
    "a ribbon", "a sail", "a spoon", "a tent", "a trumpet", "a parachute", "a camera", "a lamp",
)  # fmt: skip

TRAIN: tuple[str, ...] = tuple(
    FORMS[(number + shift) % len(FORMS)].format(thing)
    for number, thing in enumerate(THINGS)
    for shift in (0, 1)
)
# The evaluator judges candidates by HELDOUT. The demonstration measures releases by TEST.
HELDOUT, TEST = (
    tuple(FORMS[number % len(FORMS)].format(thing) for number, thing in enumerate(things))
    for things in (HELDOUT_THINGS, TEST_THINGS)
)


def score(_task: Any, answer: str) -> float:
    """Return 1 if the answer opens with the word A or An, else 0."""
    return float(answer.lstrip().partition(" ")[0] in ("A", "An"))
