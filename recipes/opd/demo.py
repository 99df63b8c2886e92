"""`reef demo --recipe opd`: a teacher knows a greeting that the model nearly never says."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recipes.distillation.greeting import greeting, says_rare
from recipes.policy_gradient.users import Rewarded, sao_arm
from reefcommon.demonstration import Arm, Demonstration, Factories

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
    sao = sao_arm("the score of each answer, no teacher", "teacher", "divergence")
    return greeting(
        "opd",
        (Arm("opd"), sao),
        says_rare,
        kind=Taught,
        about="a Llama of 0.1 M parameters learns a greeting from a teacher's probabilities",
        signal='1 if the answer is "Hello": of it the teacher knows, and SAO alone hears',
        batch=32,
    )


DEMONSTRATIONS: Factories = {"tiny": _tiny}
