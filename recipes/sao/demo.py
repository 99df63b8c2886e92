"""`reef demo`: users reward each answer, and SAO trains on their rewards."""

from pathlib import Path
from typing import Any

from recipes.policy_gradient.users import PERMUTED, Rewarded
from reefcommon.demonstration import Arm, Demonstration, Factories

EXAMPLES = Path(__file__).parent / "examples"
ARMS = (Arm("sao"), PERMUTED)


def _smollm2() -> Demonstration:
    from recipes.sao.examples.dictionary import tasks

    return Rewarded(
        recipe="sao",
        model="smollm2",
        about="SmolLM2-135M learns a preference that no prompt mentions: dictionary style",
        signal='1 if the answer opens with "A" or "An", as in a dictionary; else 0',
        config=EXAMPLES / "dictionary" / "serve.yaml",
        arms=ARMS,
        training_tasks=tasks.TRAIN,
        test_tasks=tasks.TEST,
        reward=tasks.score,
        # The first word decides the reward; three tokens make a step short.
        max_tokens=3,
        batch=16,
        minutes=15,
    )


def letters(recipe: str, config: Path, arms: tuple[Arm, ...], **stated: Any) -> Demonstration:
    """Return a demonstration on the tiny model, whose users like lower-case letters."""
    from recipes.sao.examples.tiny import tasks

    usual = {"attempts": 8, "batch": 64, "minutes": 3, "goal": 0.8}
    return Rewarded(
        recipe=recipe,
        model="tiny",
        about="a random Llama of 0.1 M parameters learns to write lower-case letters",
        signal="the share of lower-case letters in the answer",
        config=config,
        arms=arms,
        training_tasks=tasks.TRAIN,
        test_tasks=tasks.TEST,
        reward=tasks.score,
        max_tokens=12,
        **{**usual, **stated},
    )


def _tiny() -> Demonstration:
    config, stated = EXAMPLES / "tiny" / "serve.yaml", {"batch": 32, "minutes": 5, "goal": 0.9}
    return letters("sao", config, ARMS, attempts=1, **stated)


DEMONSTRATIONS: Factories = {"smollm2": _smollm2, "tiny": _tiny}
