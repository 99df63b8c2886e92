"""Demonstrations by name, and the `serve.yaml` of an arm."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import recipes
from reefcommon.config import ServeConfig, parse
from reefcommon.demonstration import Arm, Factories
from reefcommon.errors import BadConfig
from reefcommon.recipe_loading import resolve


def demonstrations(recipe: str) -> Factories:
    """Return model -> factory of a recipe's demonstrations, by its name or its package.

    Raises:
        BadConfig: it has none.
    """
    package = recipe if "." in recipe else f"recipes.{recipe.replace('-', '_')}"
    try:
        there = importlib.util.find_spec(f"{package}.demo") is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        own = sorted(path.parent.name for path in Path(recipes.__path__[0]).glob("*/demo.py"))
        choose = f"choose of {', '.join(own)}, or name a package that has a demo.py"
        raise BadConfig(f"recipe {recipe!r} has no demonstration ({package}.demo): {choose}")
    found: Factories = resolve(f"{package}.demo:DEMONSTRATIONS")
    return found


def variant(
    config: ServeConfig,
    arm: Arm,
    endpoints: Mapping[str, str],
    made: Mapping[str, Any],
    engine: str = "",
) -> ServeConfig:
    """Return `config` with the addresses of running endpoints and of an engine, and with knobs: of
    what the demonstration has made, then of the arm.

    Raises:
        BadConfig: a value is not allowed.
    """
    raw: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    for binding in raw["reef"]:
        binding.update({**made, **arm.knobs})
        for name in [name for name, value in arm.knobs.items() if value is None]:
            del binding[name]
        if arm.recipe:
            binding["recipe"] = arm.recipe
    for name, url in endpoints.items():
        raw.setdefault("models", {}).setdefault(name, {})["url"] = url
    if engine:
        raw["serving"] = {**raw.get("serving", {}), "engines": [engine]}
    # YAML reads JSON
    return parse(json.dumps(raw), source=f"serve.yaml of the arm {arm.name!r}")
