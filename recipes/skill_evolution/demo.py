"""`reef demo --recipe skill-evolution`: sessions become skills of the house."""

from recipes.reflection.house_demo import house_style

ABOUT = "a model that knows no style of the house gets skills from its sessions"
DEMONSTRATIONS = house_style("skill_evolution", ABOUT, batch=4, sessions=True)
