"""`reef demo --recipe grpo`: users ask eight times, and reward each answer."""

from functools import partial
from pathlib import Path

from recipes.policy_gradient.users import PERMUTED
from recipes.sao.demo import letters
from reefcommon.demonstration import Arm, Factories

CONFIG = Path(__file__).parent / "examples" / "letters" / "serve.yaml"
ARMS = (Arm("grpo"), PERMUTED)
DEMONSTRATIONS: Factories = {"tiny": partial(letters, "grpo", CONFIG, ARMS)}
