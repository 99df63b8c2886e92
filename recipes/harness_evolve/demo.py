"""`reef demo --recipe harness-evolve`: failures become rules of the house."""

from recipes.reflection.house_demo import house_style

ABOUT = "a model that knows no style of the house is told, rule by rule"
DEMONSTRATIONS = house_style("harness_evolve", ABOUT, batch=3)
