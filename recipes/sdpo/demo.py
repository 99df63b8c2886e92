"""`reef demo --recipe sdpo`: users ask eight times, and one answer of seven is right."""

from recipes.distillation.greeting import greeting, says_common
from reefcommon.demonstration import Arm, Demonstration, Factories

ABOUT = "attempts are compared by their scores"
GRPO = Arm("grpo", ABOUT, {"template": None}, recipe="recipes.grpo.recipe:GRPORecipe")


def _tiny() -> Demonstration:
    return greeting(
        "sdpo",
        (Arm("sdpo"), GRPO),
        says_common,
        about="a Llama of 0.1 M parameters learns a greeting from its own right attempts",
        signal='1 if the answer is "Salut"; else 0',
        attempts=8,
        batch=64,
    )


DEMONSTRATIONS: Factories = {"tiny": _tiny}
