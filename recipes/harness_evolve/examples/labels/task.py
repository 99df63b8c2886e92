"""Held-out tasks: orders for an agent, whose label is a file, and questions for a plain client."""

from typing import Any

from reefcommon.harness.trajectory import AgentOutcome

_ORDERS = ((3, "Oslo"), (12, "Leeds"), (7, "Porto"), (1, "Ghent"), (20, "Turin"), (5, "Malmo"))
ORDERS = tuple(
    {"id": f"{boxes} to {city}", "prompt": f"Order: {boxes} boxes to {city}. Make its label.",
     "label": f"{boxes} x {city.upper()}"}
    for boxes, city in _ORDERS
)  # fmt: skip

QUESTIONS = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "Name a primary colour.",
    "Which animal barks?",
    "What do bees make?",
    "What is two plus three?",
)


def labelled(task: Any, outcome: AgentOutcome) -> tuple[float, str]:
    """Return 1.0 if the label is in its file. The agent's words about it do not count."""
    found = outcome.files.get("label.txt")
    if found is None:
        return 0.0, "there is no label.txt"
    right = found.strip() == task["label"]
    return float(right), f"label.txt has {found.strip()[:40]!r}"


def greets(_task: Any, answer: str) -> float:
    """Return 1.0 if the answer greets first, else 0.0."""
    return float(answer.startswith("Hello"))
