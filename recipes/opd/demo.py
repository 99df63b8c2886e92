"""`reef demo --recipe opd`: a teacher knows a greeting that the model nearly never says."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recipes.distillation.greeting import TEST, TRAIN, says_rare
from recipes.policy_gradient.users import Rewarded
from reefcommon.demonstration import Arm, Demonstration

EXAMPLES = Path(__file__).parent / "examples"
TEACHER = "recipes.opd.examples.greeting.teacher"


class Taught(Rewarded):
    def prepare(self, model: Callable[[], Path], place: Path) -> Mapping[str, Any]:
        """Let a process of its own make the teacher, unless it is there."""
        teacher = place / "teacher"
        if not (teacher / "adapter_config.json").is_file():
            command = [sys.executable, "-m", TEACHER, str(model()), str(teacher)]
            subprocess.run(command, check=True)  # noqa: S603 - our own module
        return {"teacher": str(teacher)}


def _tiny() -> Demonstration:
    return Taught(
        recipe="opd",
        model="tiny-hint",
        about="a Llama of 0.1 M parameters learns a greeting from a teacher's probabilities",
        signal='1 if the answer is "Hello": of it the teacher knows, and SAO alone hears',
        config=EXAMPLES / "greeting" / "serve.yaml",
        arms=(
            Arm("opd"),
            Arm(
                "sao",
                "the score of each answer, no teacher",
                {
                    "teacher": None,
                    "divergence": None,
                    "critic_lr": 1e-2,
                    "critic_warmup_steps": 1,
                },
                recipe="recipes.sao.recipe:SAORecipe",
            ),
        ),
        training_tasks=TRAIN,
        test_tasks=TEST,
        judge=says_rare,
        max_tokens=6,
        batch=32,
        minutes=3,
        goal=0.8,
    )


DEMONSTRATIONS: Mapping[str, Callable[[], Demonstration]] = {"tiny": _tiny}
