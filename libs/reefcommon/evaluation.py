"""How candidates of a recipe are judged, and which samples are kept apart for that. Read by the evaluator and by the trainer.

Where the method is `replay`, one scored sample in five is held out: the trainer must not learn from it, the evaluator judges by it.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

from reefcommon.config import RecipeBinding, ServeConfig
from reefcommon.events import Policy
from reefcommon.recipe import EvaluationPlan, load_recipe, resolve

HELD_OUT_SHARE = 5


@dataclass(frozen=True, slots=True)
class Chosen:
    """The method and the policy, and who named them."""

    method: Literal["tasks", "replay"]
    policy: Policy
    source: str


def is_held_out(sample_id: str) -> bool:
    """Whether a sample belongs to the one in five that nobody trains on: decided by its id, so that everybody agrees for ever."""
    return int.from_bytes(hashlib.sha256(sample_id.encode()).digest()[:8]) % HELD_OUT_SHARE == 0


def choose(config: ServeConfig, scenario: str, recipe: str) -> Chosen:
    """How candidates of `recipe` in `scenario` are judged: tasks of `serve.yaml` before the recipe's own plan; a policy that
    `serve.yaml` names before the recipe's. A candidate of a recipe that is not bound there is judged by `serve.yaml` alone.

    Raises:
        BadConfig: a recipe that `serve.yaml` names cannot be loaded.
    """
    section = config.evaluation
    plan = _plan(config, scenario, recipe)
    named = "policy" in section.model_fields_set
    policy = section.policy if named or plan is None else plan.policy
    if section.tasks:
        return Chosen("tasks", policy, "serve.yaml")
    if plan is None:
        return Chosen("replay", policy, "default")
    return Chosen(plan.method, policy, recipe)


def bound(config: ServeConfig, scenario: str, recipe: str) -> tuple[RecipeBinding, ...]:
    """The bindings of a scenario that a candidate's recipe names: by `package.module:Class`, or by the class's own short name.

    Raises:
        BadConfig: a recipe that `serve.yaml` names does not exist.
    """
    here = (binding for binding in config.reef if binding.scenario == scenario)
    return tuple(binding for binding in here if recipe in (binding.recipe, resolve(binding.recipe).name))


def _plan(config: ServeConfig, scenario: str, recipe: str) -> EvaluationPlan | None:
    for binding in bound(config, scenario, recipe):
        return load_recipe(binding.recipe, binding.knobs).evaluation()
    return None
