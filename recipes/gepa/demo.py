"""`reef demo --recipe gepa`: rules and a skill of the house evolve, beside hill climbing."""

from recipes.reflection.house_demo import house_style
from reefcommon.demonstration import Arm

ABOUT = "a model that knows no style of the house gets rules and a skill"
BEST = Arm("best", "the highest mean is always the parent", {"select": "best"})
DEMONSTRATIONS = house_style("gepa", ABOUT, batch=1, arms=(BEST,))
