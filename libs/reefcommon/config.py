"""`serve.yaml`: the served model, the recipes that learn, and how candidates are judged.

The smallest file:

    reef:
      recipe: recipes.sao.recipe:SAORecipe
      batch_size: 1
      max_staleness: 18
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from reefcommon.config_sections import (
    SCENARIO_WORDS,
    SERVED,
    EvaluationSection,
    ExternalSection,
    GatewaySection,
    HarnessSection,
    ModelEndpoint,
    ModelName,
    ModelSection,
    RecipeBinding,
    ScenarioName,
    Section,
)
from reefcommon.config_serving import ServingSection
from reefcommon.errors import BadConfig
from reefcommon.settings import explain

_WILDCARDS = frozenset("*?[")


class ServeConfig(Section):
    reef: tuple[RecipeBinding, ...]
    """what learns: one recipe as a mapping, or several as a list"""
    model: ModelSection = ModelSection()
    """what is served and trained; a text alone is its name"""
    models: dict[ModelName, ModelEndpoint] = Field({}, validate_default=False)
    """models that recipes may ask beside their own, as judges or teachers, each with its limits"""
    evaluation: EvaluationSection = EvaluationSection()
    """how a candidate is compared with the current head"""
    harness: HarnessSection = HarnessSection()
    """what plain clients get of the harness"""
    gateway: GatewaySection = Field(GatewaySection(), description="the HTTP edge")
    serving: ServingSection = Field(ServingSection(), description="the serving nodes")
    external: ExternalSection = ExternalSection()
    """real systems instead of the embedded ones"""
    state_dir: Path = Path(".reef")
    """everything that the embedded stack keeps; `--state-dir` wins"""
    scenarios: tuple[ScenarioName, ...] = Field(
        (), description=f"further scenarios, for patterns or without a recipe: {SCENARIO_WORDS}"
    )

    @model_validator(mode="before")
    @classmethod
    def _bind_each_scenario_of_a_pattern(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "reef" not in given:
            return given
        given = _judged_as_applied(given)
        reef, named = given["reef"], given.get("scenarios") or ()
        bindings = (reef,) if isinstance(reef, dict) else reef
        if not isinstance(bindings, list | tuple) or not isinstance(named, list | tuple):
            return {**given, "reef": bindings}
        return {**given, "reef": tuple(each for item in bindings for each in _bound(item, named))}

    @field_validator("model", mode="before")
    @classmethod
    def _name_only(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_recipe_per_scenario_and_class(self) -> Self:
        bindings = [(binding.scenario, binding.recipe) for binding in self.reef]
        for scenario, recipe in bindings:
            if bindings.count((scenario, recipe)) > 1:
                twice = f"reef: recipe {recipe} is bound twice to scenario {scenario!r}: by name"
                raise ValueError(f"{twice}, by two patterns, or by a scenario listed twice")
        return self

    @model_validator(mode="after")
    def _upstreams_are_there(self) -> Self:
        serving, there = self.serving, {*self.models, SERVED}
        for name in sorted(serving.asked - there):
            known = ", ".join(sorted(there))
            raise ValueError(f"serving: no entry {name!r} under `models:`; there: {known}")
        if not all(serving.orders):
            raise ValueError("serving: upstreams and model_map need at least one entry each")
        if (own := self.model.served_as) in serving.model_map:
            raise ValueError(f"serving.model_map: {own!r} is the model that upstreams answer")
        return self

    @field_validator("models")
    @classmethod
    def _endpoints(cls, models: dict[str, ModelEndpoint]) -> dict[str, ModelEndpoint]:
        for name, entry in models.items():
            if (name == SERVED) == bool(entry.url):
                needs = "needs no url: it is Reef's own model" if entry.url else "needs a url"
                raise ValueError(f"{name} {needs}")
            if name != SERVED and not entry.model:
                raise ValueError(f"{name} needs the name of its model")
            if entry.key_file is not None and entry.key_env:
                raise ValueError(f"{name} has key_file and key_env: name only one of them")
            if entry.max_cost is not None and not entry.prompt_price + entry.completion_price:
                raise ValueError(f"{name} has max_cost, but no prices")
        return models

    @property
    def all_scenarios(self) -> tuple[str, ...]:
        """Return all scenarios that must exist, in the order of the file."""
        return tuple(dict.fromkeys(["default", *(b.scenario for b in self.reef), *self.scenarios]))


def _judged_as_applied(given: dict[str, Any]) -> dict[str, Any]:
    # A harness is judged at the place in a chat where users get it.
    harness, evaluation = given.get("harness"), given.get("evaluation")
    applied = isinstance(harness, dict) and harness.get("apply") == "user_end"
    if not applied or not isinstance(evaluation, dict):
        return given
    return {**given, "evaluation": {"rules_at": "user_end", **evaluation}}


def _bound(binding: Any, scenarios: Sequence[Any]) -> list[Any]:
    pattern = binding.get("scenario") if isinstance(binding, dict) else None
    if not isinstance(pattern, str) or not _WILDCARDS.intersection(pattern):
        return [binding]
    names = [name for name in scenarios if isinstance(name, str) and fnmatchcase(name, pattern)]
    if not names:
        raise ValueError(f"reef: no scenario under `scenarios:` fits the pattern {pattern!r}")
    return [{**binding, "scenario": name} for name in names]


def parse(text: str, *, source: str = "serve.yaml") -> ServeConfig:
    """Read a `serve.yaml` from its text. Raises BadConfig."""
    return _config(_yaml(text, source), source)


def load(path: Path) -> ServeConfig:
    """Read a `serve.yaml` from disk. Raises BadConfig."""
    return _config(read_yaml(path), str(path))


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raises BadConfig."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadConfig(f"cannot read {path}: it is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise BadConfig(f"cannot read {path}: {error.strerror or error}") from None
    return _yaml(text, str(path))


def _yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a month 13; nested too deeply
        raise BadConfig(f"{source} is not valid YAML: {_mistake(error)}") from None


def _config(raw: object, source: str) -> ServeConfig:
    if not isinstance(raw, dict):
        wanted = "must be a mapping with at least a `reef:` section, for example\n\n  reef:\n"
        raise BadConfig(f"{source} {wanted}    recipe: recipes.sao.recipe:SAORecipe")
    try:
        given = {name: section for name, section in raw.items() if section is not None}
        return ServeConfig.model_validate(given)
    except ValidationError as error:
        allowed = ", ".join(ServeConfig.model_fields)
        wrong = explain(error, model=ServeConfig)
        raise BadConfig(f"{source} cannot be used:\n{wrong}\nSections: {allowed}") from None


# Refuses a key that is there twice: YAML would take the last in silence.
class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode) and name.tag != "tag:yaml.org,2002:merge":
                if name.value in seen:
                    twice = f"the key {name.value!r} is there twice"
                    raise yaml.MarkedYAMLError(problem=twice, problem_mark=name.start_mark)
                seen.add(name.value)
        return super().construct_mapping(node, deep)


def _mistake(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, found = error.problem_mark, ", ".join(filter(None, (error.context, error.problem)))
        return f"line {mark.line + 1}, column {mark.column + 1}: {found}"
    return " ".join(str(error).split())
