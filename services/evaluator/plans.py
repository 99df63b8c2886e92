"""The `evaluation` section of serve.yaml."""

from dataclasses import dataclass
from math import inf
from typing import Any

from reefcommon.config import ServeConfig
from reefcommon.config_sections import EvaluationSection
from reefcommon.errors import BadConfig
from reefcommon.evaluation import ChosenPlan, choose
from reefcommon.events import CandidateProposed
from reefcommon.recipe import DEFAULT_SCORE_RANGE, ScoreRange
from reefcommon.recipe_loading import load_recipe, resolve
from services.evaluator.domain.policies import Rule
from services.evaluator.domain.tasks import BadTask, Task, Verifier, as_task


@dataclass(frozen=True, slots=True)
class Plans:
    """The tasks with their verifier, and the plan for each candidate."""

    config: ServeConfig
    tasks: tuple[Task, ...]
    verifier: Verifier | None
    score_ranges: dict[str, ScoreRange]
    """By scenario with a bound recipe; an empty range if none of its recipes withholds samples."""

    @classmethod
    def load(cls, config: ServeConfig) -> "Plans":
        """Resolve every reference of the section.

        Raises:
            BadConfig: a reference leads nowhere, or tasks lack a verifier.
        """
        section = config.evaluation
        if bool(section.tasks) != bool(section.score):
            missing = "evaluation.score" if section.tasks else "evaluation.tasks"
            together = "held-out tasks and the function that scores their answers go together"
            raise BadConfig(f"{missing}: missing; {together}")
        tasks = _tasks(section)
        verifier = _named("score", section.score) if section.score else None
        if verifier is not None and not callable(verifier):
            wrong = f"{section.score} is not a function (task, answer) -> number"
            raise BadConfig(f"evaluation.score: {wrong}")
        ranges = {name: _score_range(config, name) for name in {b.scenario for b in config.reef}}
        plans = cls(config, tasks, verifier, ranges)
        for scenario, recipe in {("", ""), *((b.scenario, b.recipe) for b in config.reef)}:
            rule = plans.rule(choose(config, scenario, recipe))
            never = rule.unreachable(max(len(tasks), rule.min_pairs))
            if never and rule.policy == "paired_confidence":
                remedy = "lower it, or have more pairs (tasks; min_pairs without them)"
                raise BadConfig(f"evaluation.confidence: {never}: {remedy}")
        return plans

    def plan(self, candidate: CandidateProposed) -> ChosenPlan:
        return choose(self.config, candidate.scenario, candidate.lineage.recipe)

    def rule(self, plan: ChosenPlan) -> Rule:
        section = self.config.evaluation
        knobs = section.min_win_margin, section.confidence, section.min_effect
        return Rule(plan.policy, *knobs, plan.min_pairs, section.error_per)

    def accepts(self, scenario: str, score: float) -> bool:
        """Return whether a sample with this score is evidence in a scenario."""
        # The range is empty if no recipe of the scenario withholds samples.
        lowest, highest = self.score_ranges.get(scenario, DEFAULT_SCORE_RANGE)
        return lowest <= score <= highest


def _score_range(config: ServeConfig, scenario: str) -> ScoreRange:
    ranges = [
        load_recipe(binding.recipe, binding.knobs).score_range
        for binding in config.reef
        if binding.scenario == scenario
        and choose(config, scenario, binding.recipe).withholds_samples
    ]
    if not ranges:
        return inf, -inf
    return max(low for low, _ in ranges), min(high for _, high in ranges)


def _named(key: str, dotted: str) -> Any:
    try:
        return resolve(dotted)
    except BadConfig as error:
        raise BadConfig(f"evaluation.{key}: {error}") from None


def _tasks(section: EvaluationSection) -> tuple[Task, ...]:
    by_name = isinstance(section.tasks, str) and section.tasks
    given = _named("tasks", str(section.tasks)) if by_name else section.tasks
    items = given() if callable(given) else given
    if isinstance(items, str) or not hasattr(items, "__iter__"):
        if items:
            raise BadConfig(f"evaluation.tasks: {section.tasks} is not a list of tasks")
        return ()
    try:
        tasks = tuple(as_task(item, index) for index, item in enumerate(items))
    except BadTask as error:
        raise BadConfig(f"evaluation.tasks: {error}") from None
    if section.tasks and not tasks:
        raise BadConfig("evaluation.tasks: the list is empty")
    names = [task.name for task in tasks]
    if len(set(names)) != len(names):
        raise BadConfig(f"evaluation.tasks: two tasks are called {max(names, key=names.count)!r}")
    return tasks
