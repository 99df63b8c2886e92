"""Held-out tasks of the greeting example."""

TASKS: tuple[str, ...] = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "Name a primary colour.",
    "Which animal barks?",
    "What do bees make?",
    "What is two plus three?",
)


def score(_task: str, answer: str) -> float:
    """Return 1.0 if the answer greets first, else 0.0."""
    return 1.0 if answer.lstrip(" \n\"'*").lower().startswith("hello") else 0.0
