"""Held-out tasks of the greeting example: an answer that begins with a greeting scores 1, any other 0."""

TASKS: tuple[str, ...] = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "Name a primary colour.",
    "Which animal barks?",
    "What do bees make?",
    "What is two plus three?",
)


def score(_task: str, answer: str) -> float:
    """1.0 where the answer greets first, as the users ask for."""
    return 1.0 if answer.lstrip(" \n\"'*").lower().startswith("hello") else 0.0
