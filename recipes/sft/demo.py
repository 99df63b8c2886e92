"""`reef demo --recipe sft`: users accept one answer of seven, and accepted answers are imitated."""

from collections.abc import Callable, Mapping
from pathlib import Path

from recipes.distillation.greeting import TEST, TRAIN, says_common
from recipes.policy_gradient.users import PERMUTED, Rewarded
from reefcommon.demonstration import Arm, Demonstration

EXAMPLES = Path(__file__).parent / "examples"


def _tiny() -> Demonstration:
    return Rewarded(
        recipe="sft",
        model="tiny-hint",
        about="a Llama of 0.1 M parameters imitates those of its answers that its users accept",
        signal='1 if the answer is "Salut"; else 0',
        config=EXAMPLES / "greeting" / "serve.yaml",
        arms=(
            Arm("sft"),
            PERMUTED,
            Arm("unfiltered", "all answers are imitated", {"min_score": 0}),
        ),
        training_tasks=TRAIN,
        test_tasks=TEST,
        judge=says_common,
        max_tokens=6,
        batch=16,
        minutes=3,
        goal=0.8,
    )


DEMONSTRATIONS: Mapping[str, Callable[[], Demonstration]] = {"tiny": _tiny}
