"""What the users of the hello example ask, and what they like: an answer that starts with Hello.

The instruction is in the conversation, so the base model obeys now and then; that is what reinforcement has to start from.
"""

from typing import Any

Task = list[dict[str, str]]

INSTRUCTION = "Greet the user with Hello first."


def ask(question: str) -> Task:
    """One conversation: the user's words, then the instruction, which the base model obeys about one time in three there."""
    return [{"role": "user", "content": f"{question}\n{INSTRUCTION}"}]


TRAIN: tuple[Task, ...] = tuple(
    ask(question)
    for question in (
        "What is the tallest tree?",
        "How do I boil an egg?",
        "Name a river in Europe.",
        "Why is the sky blue?",
        "Tell me about bees.",
        "What should I cook tonight?",
        "How far away is the moon?",
        "Which colour is a ripe lemon?",
        "Give me a tip for sleeping well.",
        "What does a librarian do?",
        "How do birds find their way?",
        "Name a metal that is liquid.",
        "What is a good name for a cat?",
        "How long is a marathon?",
        "Explain rain to a child.",
        "What grows in a desert?",
        "Who paints houses?",
        "How do I tie a knot?",
        "Name three fruits.",
        "What is the use of salt?",
        "How do magnets work?",
        "Which animal is the fastest?",
        "What is a haiku?",
        "How do I clean a window?",
    )
)

HELDOUT: tuple[Task, ...] = tuple(
    ask(question)
    for question in (
        "What is the deepest lake?",
        "How do I plant a tree?",
        "Name a mountain in Asia.",
        "Why is grass green?",
        "Tell me about ants.",
        "What should I read next?",
        "How hot is the sun?",
        "Which colour is a ruby?",
        "Give me a tip for saving money.",
        "What does a carpenter do?",
        "How do fish breathe?",
        "Name a planet with rings.",
    )
)


def score(task: Any, answer: str) -> float:
    """1 if the answer starts with Hello, else 0."""
    return float(answer.lstrip().startswith("Hello"))
