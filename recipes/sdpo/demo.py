"""`reef demo --recipe sdpo`: users ask eight times, and one answer of seven is right."""

from collections.abc import Callable, Mapping
from pathlib import Path

from recipes.distillation.greeting import TEST, TRAIN, says_common
from recipes.policy_gradient.users import Rewarded
from reefcommon.demonstration import Arm, Demonstration

EXAMPLES = Path(__file__).parent / "examples"


def _tiny() -> Demonstration:
    return Rewarded(
        recipe="sdpo",
        model="tiny-hint",
        about="a Llama of 0.1 M parameters learns a greeting from its own right attempts",
        signal='1 if the answer is "Salut"; else 0',
        config=EXAMPLES / "greeting" / "serve.yaml",
        arms=(
            Arm("sdpo"),
            Arm(
                "grpo",
                "attempts are compared by their scores",
                {"template": None},
                recipe="recipes.grpo.recipe:GRPORecipe",
            ),
        ),
        training_tasks=TRAIN,
        test_tasks=TEST,
        judge=says_common,
        attempts=8,
        max_tokens=6,
        batch=64,
        minutes=3,
        goal=0.8,
    )


DEMONSTRATIONS: Mapping[str, Callable[[], Demonstration]] = {"tiny": _tiny}
