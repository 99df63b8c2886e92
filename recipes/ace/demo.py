"""`reef demo --recipe ace`: a playbook of the house grows bullet by bullet."""

from recipes.reflection.house_demo import house_style

ABOUT = "a model that knows no style of the house gets a playbook of it"
DEMONSTRATIONS = house_style("ace", ABOUT, batch=4)
