"""`reef demo --recipe guidance`: a model advises a rule that packs 26 circles, and learns."""

from pathlib import Path

from recipes.ttt_discover.demo import Packed
from reefcommon.demonstration import Arm, Demonstration, Factories

EXAMPLES = Path(__file__).parent / "examples"


def _tiny() -> Demonstration:
    return Packed(
        recipe="guidance",
        model="tiny",
        about="a Llama of 0.1 M parameters says how many circles each row has; a rule packs them",
        signal="the sum of the radii of 26 circles, 0 if they are fewer",
        config=EXAMPLES / "row_pattern" / "serve.yaml",
        arms=(Arm("guidance"), Arm("frozen", "the guide never learns", {"algorithm": "frozen"})),
        max_tokens=6,
        batch=8,
        minutes=4,
        most=2.6,
        goal=2.3,
    )


DEMONSTRATIONS: Factories = {"tiny": _tiny}
