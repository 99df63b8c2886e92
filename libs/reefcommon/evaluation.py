"""The evaluation plan of a recipe, and the samples that are withheld for it."""

# If candidates are judged by `replay`, a fifth of the scored samples is held out: the trainer must
# not learn from them, and the evaluator judges by them.

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from reefcommon.config import ServeConfig
from reefcommon.config_sections import EvaluationSection, OnStale, RecipeBinding
from reefcommon.errors import BadConfig
from reefcommon.evaluator import Evaluator, ScoreFunction, implements
from reefcommon.events import Policy
from reefcommon.recipe import EvaluationPlan, Recipe
from reefcommon.recipe_loading import load_recipe, resolve

HELD_OUT_SHARE = 5
HELD_OUT = "held_out"
"""The reason for which the trainer refuses a sample that is kept for evaluation."""

MIN_TASKS = 5
MIN_HELD_OUT = 20


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The plan for candidates. `min_pairs`: the pairs that a comparison needs."""

    method: str
    policy: Policy
    min_pairs: int
    on_stale: OnStale
    evaluator: Evaluator | None = None
    joint: bool = False

    @property
    def withholds_samples(self) -> bool:
        return self.method == "replay" and self.policy != "always"


def is_held_out(sample_id: str) -> bool:
    """Return whether a sample is withheld from training. The id alone decides."""
    return int.from_bytes(hashlib.sha256(sample_id.encode()).digest()[:8]) % HELD_OUT_SHARE == 0


def choose(config: ServeConfig, scenario: str, recipe: str) -> ChosenPlan:
    """Return the plan for candidates: `serve.yaml` first, then the recipe's own.

    The default policy is `paired_confidence` for tasks, else `no_regression`. Raises BadConfig.
    """
    section = config.evaluation
    bindings = bound(config, scenario, recipe)
    own: EvaluationPlan | Evaluator = EvaluationPlan()
    if bindings:
        dotted = bindings[0].recipe
        own = evaluation_of(load_recipe(dotted, bindings[0].knobs), dotted)
    evaluator = own if isinstance(own, Evaluator) else None
    plan = own if isinstance(own, EvaluationPlan) else _plan_of(own)
    method = "tasks" if section.tasks_of(scenario) else plan.method
    by_tasks = method == "tasks"
    default: Policy = "paired_confidence" if by_tasks else "no_regression"
    return ChosenPlan(
        method=method,
        policy=section.policy or plan.policy or default,
        min_pairs=section.min_pairs or (MIN_TASKS if by_tasks else MIN_HELD_OUT),
        on_stale=bindings[0].on_stale if bindings else "merge",
        evaluator=evaluator,
        joint=bool(bindings) and bindings[0].gate == "joint",
    )


def evaluation_of(recipe: Recipe, dotted: str) -> EvaluationPlan | Evaluator:
    """Return the recipe's own plan or evaluator. Raises BadConfig."""
    try:
        own: object = recipe.evaluation()
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        raise BadConfig(f"{dotted}: evaluation() failed: {said}") from error
    if not isinstance(own, EvaluationPlan | Evaluator):
        forms = "an EvaluationPlan or an Evaluator"
        raise BadConfig(f"{dotted}: evaluation() must return {forms}, not {own!r:.80}")
    return own


def _plan_of(evaluator: Evaluator) -> EvaluationPlan:
    # Its tasks are not asked for: trainer and publisher choose too, and tasks may be large.
    method: Literal["tasks", "replay"] = "tasks" if implements(evaluator, "tasks") else "replay"
    return EvaluationPlan(method, evaluator.policy)


def score_function(
    section: EvaluationSection, scenario: str, evaluator: Evaluator
) -> ScoreFunction | None:
    """Return the function of `serve.yaml`, else of the recipe's evaluator. Raises BadConfig."""
    named = section.score_of(scenario)
    if not named:
        return evaluator.score if implements(evaluator, "score") else None
    function = named_object("score", named)
    if not callable(function):
        raise BadConfig(f"evaluation.score: {named} is not a function (task, answer) -> number")
    verifier: ScoreFunction = function
    return verifier


def named_object(key: str, dotted: str) -> Any:
    """Return the object that a key of the section names. Raises BadConfig."""
    try:
        return resolve(dotted)
    except BadConfig as error:
        raise BadConfig(f"evaluation.{key}: {error}") from None


def check_names(config: ServeConfig) -> None:
    """Raises BadConfig if two recipes of a scenario have one name: candidates go by it."""
    known: dict[tuple[str, str], str] = {}
    for each in config.reef:
        name = resolve(each.recipe).name
        other = known.setdefault((each.scenario, name), each.recipe)
        if other != each.recipe:
            both = f"{other} and {each.recipe} in scenario {each.scenario!r}"
            raise BadConfig(f"reef: two recipes are called {name!r}: {both}; rename one of them")


def bound(config: ServeConfig, scenario: str, recipe: str) -> tuple[RecipeBinding, ...]:
    """Return the bindings that `recipe` names, by its full or short name. Raises BadConfig."""
    here = (binding for binding in config.reef if binding.scenario == scenario)
    return tuple(each for each in here if recipe in (each.recipe, resolve(each.recipe).name))
