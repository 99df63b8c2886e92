"""docs/methods.md: its file loads, and its table names recipes that there are."""

import re
from pathlib import Path

from reefcommon.config import parse
from reefcommon.recipe_loading import load_recipe

PAGE = Path("docs/methods.md").read_text(encoding="utf-8")


def test_the_file_for_a_real_model_loads():
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = parse(text)
    (binding,) = config.reef
    assert load_recipe(binding.recipe, binding.knobs).name == "openclaw_rl"
    assert config.models["judge"].max_cost


def test_every_method_of_the_table_is_a_folder():
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert len(named) >= 11
    assert [name for name in named if not Path("recipes", name, "recipe.py").is_file()] == []
