"""The tables of docs/serve-yaml.md."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial

from pydantic import BaseModel

from infra.docs import markdown
from infra.docs.settings import ROOT
from reefcli.commands.recipes import recipes_in
from reefcli.field_words import default, kind
from reefcommon.config import ServeConfig
from reefcommon.config_agent import AgentSection
from reefcommon.config_sections import ModelEndpoint, RecipeBinding
from reefcommon.meanings import meaning
from reefcommon.recipe import Recipe
from reefcommon.recipe_loading import resolve


def table(model: type[BaseModel]) -> str:
    """Return a Markdown table of a model's keys."""
    fields = model.model_fields.items()
    rows = [(f"`{key}`", kind(field), default(field), meaning(model, key)) for key, field in fields]
    return markdown.table(("key", "type", "default", "meaning"), rows)


def section(name: str) -> str:
    return table(type(ServeConfig.model_fields[name].default))


def recipes() -> dict[str, type[Recipe]]:
    """Return the shipped recipes by dotted name, without importing torch."""
    # By file, not by import of the package: a learner would load torch.
    names = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/recipe.py"))
    modules = [importlib.import_module(f"recipes.{name}.recipe") for name in names]
    found = [listed.recipe for module in modules for listed in recipes_in(module)]
    return {name: resolve(name) for name in found}


def knobs() -> str:
    return "\n\n".join(
        f"### {name}\n\n{cls.summary}.\n\n{table(cls.knobs_type)}"
        for name, cls in recipes().items()
    )


_SECTIONS = ("model", "evaluation", "harness", "gateway", "serving", "external")
SECTIONS: Mapping[str, Callable[[], str]] = {
    "top": partial(table, ServeConfig),
    "reef": partial(table, RecipeBinding),
    "models": partial(table, ModelEndpoint),
    "agent": partial(table, AgentSection),
    **{name: partial(section, name) for name in _SECTIONS},
    "knobs": knobs,
}
