"""`reef demo --recipe grpo`: users ask eight times, and reward each answer."""

from collections.abc import Callable, Mapping
from pathlib import Path

from recipes.policy_gradient.users import PERMUTED, Rewarded
from recipes.sao.examples.tiny import tasks
from reefcommon.demonstration import Arm, Demonstration

EXAMPLES = Path(__file__).parent / "examples"


def _tiny() -> Demonstration:
    return Rewarded(
        recipe="grpo",
        model="tiny",
        about="a random Llama of 0.1 M parameters learns to write lower-case letters",
        signal="the share of lower-case letters in the answer",
        config=EXAMPLES / "letters" / "serve.yaml",
        arms=(Arm("grpo"), PERMUTED),
        training_tasks=tasks.TRAIN,
        test_tasks=tasks.TEST,
        judge=tasks.score,
        attempts=8,
        max_tokens=12,
        batch=64,
        minutes=3,
        goal=0.8,
    )


DEMONSTRATIONS: Mapping[str, Callable[[], Demonstration]] = {"tiny": _tiny}
