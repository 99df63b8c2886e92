"""`reef demo --recipe best-of`: users ask eight times; the best of the answers is imitated."""

from functools import partial
from pathlib import Path

from recipes.policy_gradient.users import sao_arm
from recipes.sao.demo import letters
from reefcommon.demonstration import Arm, Factories

CONFIG = Path(__file__).parent / "examples" / "letters" / "serve.yaml"
ARMS = (
    Arm("best_of"),
    Arm("unfiltered", "all answers are imitated", {"keep": 8}),
    sao_arm("the score of each answer", "group_size", "min_score"),
)
DEMONSTRATIONS: Factories = {"tiny": partial(letters, "best_of", CONFIG, ARMS)}
