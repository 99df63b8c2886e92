"""docs/serve-yaml.md is what the models say, and its examples are files that can be used."""

import re

import pytest

from infra.docs import serve_yaml
from reefcommon.config import ServeConfig, parse
from reefcommon.config_agent import AgentSection
from reefcommon.config_sections import RecipeBinding, Section
from reefcommon.meanings import meaning

PAGE = (serve_yaml.ROOT / "docs" / "serve-yaml.md").read_text()
SECTIONS = {
    name: type(field.default)
    for name, field in ServeConfig.model_fields.items()
    if isinstance(field.default, Section)
}
MODELS = {
    "top": ServeConfig,
    "reef": RecipeBinding,
    "agent": AgentSection,
    **SECTIONS,
    **{name: recipe.knobs_type for name, recipe in serve_yaml.recipes().items()},
}


def test_every_section_has_its_table():
    assert (
        SECTIONS.keys() | {"top", "reef", "models", "agent", "knobs"} == serve_yaml.SECTIONS.keys()
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_key_says_what_it_means(name):
    assert [key for key in MODELS[name].model_fields if not meaning(MODELS[name], key)] == []


def test_types_bounds_and_defaults_come_from_the_fields():
    table = serve_yaml.section("evaluation")
    assert "| `samples_per_task` | integer, >= 1, <= 256 | `4` |" in table
    assert "| `tasks` | text or list or mapping of name to text or list | `[]` |" in table
    assert "| `recipe` | text | required |" in serve_yaml.table(RecipeBinding)
    assert "| `kafka_idempotence` | true, false | `true` |" in serve_yaml.section("external")


def test_the_examples_can_be_used():
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert [len(parse(text).reef) for text in examples] == [1, 2, 1, 1, 1]


def rows_by_title() -> dict[str, dict[str, str]]:
    """Of each section of the knobs: its own rows by key, then those of the sections it links."""
    sections = PAGE.split("<!-- generated: knobs -->")[1].split("\n### ")[1:]
    texts = dict(section.split("\n", 1) for section in sections)
    anchors = {re.sub(r"[^\w -]", "", title.lower()): title for title in texts}
    found = {}
    for title, text in texts.items():
        linked = [anchors[anchor] for anchor in re.findall(r"\]\(#([\w-]+)\)", text)]
        tables = [
            dict(re.findall(r"^(?=\| `(\w+)`)(.*)$", texts[t], re.MULTILINE))
            for t in [title, *linked]
        ]
        found[title] = {key: row for rows in reversed(tables) for key, row in rows.items()}
    return found


@pytest.mark.parametrize("name", serve_yaml.recipes())
def test_the_linked_tables_have_all_knobs_of_a_recipe(name):
    whole = serve_yaml.table(serve_yaml.recipes()[name].knobs_type).splitlines()[2:]
    assert sorted(rows_by_title()[name].values()) == sorted(whole)
