"""How candidates of a recipe are judged, and which samples are kept apart for that. Read by the evaluator and by the trainer.

Where the method is `replay`, one scored sample in five is held out: the trainer must not learn from it, the evaluator judges by it.
"""

import hashlib

from reefcommon.config import RecipeBinding, ServeConfig
from reefcommon.recipe import EvaluationPlan, load_recipe, resolve

HELD_OUT_SHARE = 5
HELD_OUT = "held_out"
"""Why the trainer refuses a sample that is kept for evaluation."""


def is_held_out(sample_id: str) -> bool:
    """Whether a sample belongs to the one in five that nobody trains on: decided by its id, so that everybody agrees for ever."""
    return int.from_bytes(hashlib.sha256(sample_id.encode()).digest()[:8]) % HELD_OUT_SHARE == 0


def choose(config: ServeConfig, scenario: str, recipe: str) -> EvaluationPlan:
    """How candidates of `recipe` in `scenario` are judged: tasks of `serve.yaml` before the recipe's own plan; a policy that
    `serve.yaml` names before the recipe's. A recipe that is not bound there has the plan of one that says nothing.

    Raises:
        BadConfig: a recipe that `serve.yaml` names cannot be loaded.
    """
    section = config.evaluation
    plan = _plan(config, scenario, recipe)
    return EvaluationPlan(
        method="tasks" if section.tasks else plan.method,
        policy=section.policy if "policy" in section.model_fields_set else plan.policy,
    )


def bound(config: ServeConfig, scenario: str, recipe: str) -> tuple[RecipeBinding, ...]:
    """The bindings of a scenario that a candidate's recipe names: by `package.module:Class`, or by the class's own short name.

    Raises:
        BadConfig: a recipe that `serve.yaml` names does not exist.
    """
    here = (binding for binding in config.reef if binding.scenario == scenario)
    return tuple(
        binding for binding in here if recipe in (binding.recipe, resolve(binding.recipe).name)
    )


def _plan(config: ServeConfig, scenario: str, recipe: str) -> EvaluationPlan:
    for binding in bound(config, scenario, recipe):
        return load_recipe(binding.recipe, binding.knobs).evaluation()
    return EvaluationPlan()
