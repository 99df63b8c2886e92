"""`reef demo --recipe sft`: users accept one answer of seven, and accepted answers are imitated."""

from recipes.distillation.greeting import greeting, says_common
from recipes.policy_gradient.users import PERMUTED
from reefcommon.demonstration import Arm, Demonstration, Factories

ALL = Arm("unfiltered", "all answers are imitated", {"min_score": 0})


def _tiny() -> Demonstration:
    return greeting(
        "sft",
        (Arm("sft"), PERMUTED, ALL),
        says_common,
        about="a Llama of 0.1 M parameters imitates those of its answers that its users accept",
        signal='1 if the answer is "Salut"; else 0',
        batch=16,
    )


DEMONSTRATIONS: Factories = {"tiny": _tiny}
