"""`reef demo --recipe best-of`: users ask eight times; the best of the answers is imitated."""

from collections.abc import Callable, Mapping
from pathlib import Path

from recipes.policy_gradient.users import Rewarded
from recipes.sao.examples.tiny import tasks
from reefcommon.demonstration import Arm, Demonstration

EXAMPLES = Path(__file__).parent / "examples"


def _tiny() -> Demonstration:
    return Rewarded(
        recipe="best_of",
        model="tiny",
        about="a random Llama of 0.1 M parameters learns to write lower-case letters",
        signal="the share of lower-case letters in the answer",
        config=EXAMPLES / "letters" / "serve.yaml",
        arms=(
            Arm("best_of"),
            Arm("unfiltered", "all answers are imitated", {"keep": 8}),
            Arm(
                "sao",
                "the score of each answer",
                {
                    "group_size": None,
                    "min_score": None,
                    "critic_lr": 1e-2,
                    "critic_warmup_steps": 1,
                },
                recipe="recipes.sao.recipe:SAORecipe",
            ),
        ),
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
