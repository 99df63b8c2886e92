"""A house style that no model can guess: prices, dates and names have forms of their own."""

# The verifier's words say the style; a question never does.

from collections.abc import Mapping, Sequence
from typing import Any

WORDS = {
    "price": "Prices are stated in cents, as a bare number.",
    "date": "Dates are stated as year-month-day, in digits.",
    "name": "Names are stated with the family name first, in capitals, then a comma.",
}
_PEOPLE = ("Ann Lee", "Tom Hill", "Eva Stone", "Max Wood", "Ida Field")


def tasks_of(first: int, people: Sequence[str]) -> list[dict[str, Any]]:
    """Return three tasks for each person, with numbers from `first`."""
    tasks: list[dict[str, Any]] = []
    for number, person in enumerate(people, first):
        given, family = person.split()
        asked = {
            "price": (f"A pen costs {number} euros and 50 cents. State its price.", f"{number}50"),
            "date": (
                f"The shop opens on {number} May 2026. State the date.",
                f"2026-05-{number:02d}",
            ),
            "name": (f"{person} asks for a table. State the name.", f"{family.upper()}, {given}"),
        }
        tasks += [
            {"id": f"{kind}-{number}", "prompt": prompt, "kind": kind, "wanted": wanted}
            for kind, (prompt, wanted) in asked.items()
        ]
    return tasks


TRAIN = tasks_of(1, _PEOPLE)
VALIDATION = tasks_of(11, ("Jon Lake", "Mia Park", "Leo Ford"))
# Five tasks of each kind: a rule about a single kind can pass a paired test.
HELD_OUT = tasks_of(21, ("Sam Bell", "Amy Frost", "Roy Kent", "Una Moss", "Ben Clay"))


def score(task: Mapping[str, Any], answer: str) -> tuple[float, str]:
    """Return 1.0 if the answer is in the style of the house, and words about it."""
    right = answer.strip().rstrip(".") == task["wanted"]
    return float(right), "right" if right else WORDS[task["kind"]]
