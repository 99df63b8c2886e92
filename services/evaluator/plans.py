"""The plans for candidates: the `evaluation` section of serve.yaml, then the recipes' own."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import Any

from reefcommon.config import ServeConfig
from reefcommon.config_sections import EvaluationSection
from reefcommon.errors import BadConfig
from reefcommon.evaluation import ChosenPlan, bound, choose, named_object, score_function
from reefcommon.evaluator import BadTask, Evaluator, Runner, Task, as_tasks, implements
from reefcommon.events import CandidateProposed
from reefcommon.recipe import DEFAULT_SCORE_RANGE, Recipe, ScoreRange, WeightRecipe
from reefcommon.recipe_context import RunProgram
from reefcommon.recipe_loading import load_recipe
from reefkit.episodes.runner import check_section
from reefkit.jobs.faults import called_within, last_lines
from reefkit.recipe_binding import bindings
from reefkit.verifier import Verifier
from services.evaluator.domain.policies import Rule

MAX_TASKS = 100_000
_TOGETHER = "held-out tasks and the function that scores their answers go together"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for the candidates of a recipe in a scenario."""

    chosen: ChosenPlan
    rule: Rule
    tasks: tuple[Task, ...]
    verifier: Verifier
    sampling: EvaluationSection
    runner: Runner = "chat"


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans. `limit_s`: the longest call of a verifier; `run`: the sandbox of programs."""

    config: ServeConfig
    score_ranges: dict[str, ScoreRange]
    """By scenario with a bound recipe; an empty range if none of its recipes withholds samples."""
    held_out: dict[str, int]
    """By scenario whose samples are withheld: the prompts that a comparison needs."""
    limit_s: float = 120.0
    run: RunProgram | None = None
    _made: dict[tuple[str, str], Plan] = field(default_factory=dict)
    _by_name: dict[str, tuple[Task, ...]] = field(default_factory=dict)

    @classmethod
    def load(
        cls, config: ServeConfig, *, limit_s: float = 120.0, run: RunProgram | None = None
    ) -> "Plans":
        """Resolve every reference of the section.

        Raises:
            BadConfig: a reference leads nowhere, or tasks lack a verifier.
        """
        ranges = {name: _score_range(config, name) for name in {b.scenario for b in config.reef}}
        kind: type[Recipe] = WeightRecipe
        held = [one for one in bindings(config, kind) if one.holds_out]
        needed = {b.scenario: choose(config, b.scenario, b.dotted).min_pairs for b in held}
        plans = cls(config, ranges, needed, limit_s, run)
        _check_scenarios(config)
        unbound = (("", ""), *((name, "") for name in config.all_scenarios))
        for scenario, recipe in (*unbound, *((b.scenario, b.recipe) for b in config.reef)):
            if "*" in scenario:  # a pattern: its scenarios are not known yet
                continue
            plan = plans.of(scenario, recipe)
            never = plan.rule.unreachable(max(len(plan.tasks), plan.rule.min_pairs))
            if never and plan.rule.policy == "paired_confidence":
                remedy = "lower it, or have more pairs (tasks; min_pairs without them)"
                raise BadConfig(f"evaluation.confidence: {never}: {remedy}")
        plans._check_together()
        if plans.agents:
            check_section(config.evaluation.agent)
        return plans

    def plan(self, candidate: CandidateProposed) -> Plan:
        """Return the plan for a candidate. Blocks while a recipe loads tasks. Raises BadConfig."""
        return self.of(candidate.scenario, candidate.lineage.recipe)

    def of(self, scenario: str, recipe: str) -> Plan:
        bindings = bound(self.config, scenario, recipe)
        key = (scenario, bindings[0].recipe if bindings else "")
        if key not in self._made:
            self._made.setdefault(key, self._make(*key))
        return self._made[key]

    @property
    def agents(self) -> bool:
        """Whether candidates may be judged by an agent's runs."""
        given = self.config.evaluation.runner
        named = given.values() if isinstance(given, dict) else (given,)
        return "agent" in {*named, *(plan.runner for plan in self._made.values())}

    def task_names(self) -> dict[str, list[str]]:
        found: dict[str, dict[str, None]] = {}
        for (scenario, _), plan in self._made.items():
            if scenario and plan.tasks:
                found.setdefault(scenario, {}).update((task.name, None) for task in plan.tasks)
        return {scenario: list(names) for scenario, names in found.items()}

    def accepts(self, scenario: str, score: float) -> bool:
        """Return whether a sample with this score is evidence in a scenario."""
        # The range is empty if no recipe of the scenario withholds samples.
        lowest, highest = self.score_ranges.get(scenario, DEFAULT_SCORE_RANGE)
        return lowest <= score <= highest

    def _make(self, scenario: str, recipe: str) -> Plan:
        section, chosen = self.config.evaluation, choose(self.config, scenario, recipe)
        evaluator = chosen.evaluator or Evaluator()
        tasks = self._given(scenario) or self._own(evaluator, scenario, recipe)
        function = score_function(section, scenario, evaluator)
        if recipe and tasks and function is None:
            missing = f"missing for {recipe} in scenario {scenario!r}; {_TOGETHER}"
            raise BadConfig(f"evaluation.score: {missing}")
        if function is None:
            tasks = ()
        runner = section.runner_of(scenario) or evaluator.runner
        verifier = Verifier(scenario, function, evaluator, self.limit_s, self.run, runner)
        return Plan(chosen, self._rule(chosen), tasks, verifier, section, runner)

    def _own(self, evaluator: Evaluator, scenario: str, recipe: str) -> tuple[Task, ...]:
        if not implements(evaluator, "tasks"):
            return ()
        source = f"{recipe}: tasks({scenario!r})"
        return _called(source, self.limit_s, lambda: evaluator.tasks(scenario), source)

    def _given(self, scenario: str) -> tuple[Task, ...]:
        given = self.config.evaluation.tasks_of(scenario)
        if not isinstance(given, str):
            return _read(given, f"evaluation.tasks: {given}", "evaluation.tasks") if given else ()
        # A function is called once: all its scenarios have the same tasks.
        if given and given not in self._by_name:
            found = named_object("tasks", given)
            source = f"evaluation.tasks: {given}"
            items = found if callable(found) else lambda: found
            self._by_name[given] = _called(source, self.limit_s, items, "evaluation.tasks")
        return self._by_name.get(given, ())

    def _rule(self, chosen: ChosenPlan) -> Rule:
        section = self.config.evaluation
        knobs = section.min_win_margin, section.confidence, section.min_effect
        rule = Rule(chosen.policy, *knobs, chosen.min_pairs, section.error_per)
        return replace(rule, floor_score=section.floor_score)

    def _check_together(self) -> None:
        section, used = self.config.evaluation, any(plan.tasks for plan in self._made.values())
        if section.tasks and not used:
            raise BadConfig(f"evaluation.score: missing; {_TOGETHER}")
        if section.score and not used:
            raise BadConfig(f"evaluation.tasks: missing; {_TOGETHER}")


def _check_scenarios(config: ServeConfig) -> None:
    section = config.evaluation
    if config.gateway.implicit_scenarios:
        return
    for key, value in (("tasks", section.tasks), ("score", section.score)):
        for name in value if isinstance(value, dict) else ():
            if name not in config.all_scenarios and "*" not in name:
                known = f"this file names {', '.join(config.all_scenarios)}"
                remedy = "correct the name, or add it under `scenarios:`"
                raise BadConfig(f"evaluation.{key}.{name}: no such scenario; {known}: {remedy}")


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


def _called(source: str, limit_s: float, items: Callable[[], Any], key: str) -> tuple[Task, ...]:
    try:
        # Read in the same thread: a generator is its author's code too.
        return called_within(limit_s, lambda: _read(items(), source, key))
    except BadConfig:
        raise
    except TimeoutError as error:
        raise BadConfig(f"{source}: {error or 'TimeoutError'}") from error
    except Exception as error:  # its author's code
        said = last_lines(error).rpartition("\n")[2]
        raise BadConfig(f"{source} failed: {said}") from error


def _read(items: Any, source: str, key: str) -> tuple[Task, ...]:
    if isinstance(items, str) or not hasattr(items, "__iter__"):
        raise BadConfig(f"{source} is not a list of tasks")
    try:
        tasks = as_tasks(tuple(islice(items, MAX_TASKS)))
    except BadTask as error:
        raise BadConfig(f"{key}: {error}") from None
    if not tasks or len(tasks) == MAX_TASKS:
        fault = f"{MAX_TASKS} tasks or more" if tasks else "the list is empty"
        raise BadConfig(f"{key}: {fault}")
    return tasks
