"""What the configuration says about judging: tasks, verifier, method and policy, read once and refused where they cannot work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reefcommon.config import EvaluationSection, ServeConfig
from reefcommon.errors import BadConfig
from reefcommon.evaluation import choose
from reefcommon.events import CandidateProposed
from reefcommon.recipe import EvaluationPlan, resolve
from services.evaluator.domain.policies import Rule
from services.evaluator.domain.tasks import BadTask, Task, as_task

Verifier = Callable[[Any, str], Any]
"""(task as configured, the answer's text) -> finite number, higher is better."""


@dataclass(frozen=True, slots=True)
class Plans:
    """The configured tasks with their verifier, and the choice for each candidate."""

    config: ServeConfig
    tasks: tuple[Task, ...]
    verifier: Verifier | None

    @classmethod
    def load(cls, config: ServeConfig) -> "Plans":
        """Raises BadConfig where a reference leads nowhere, or tasks come without a verifier."""
        section = config.evaluation
        if bool(section.tasks) != bool(section.score):
            missing = "evaluation.score" if section.tasks else "evaluation.tasks"
            raise BadConfig(
                f"{missing}: missing; held-out tasks and the function that scores their answers go together"
            )
        tasks = _tasks(section)
        verifier = resolve(section.score) if section.score else None
        if verifier is not None and not callable(verifier):
            raise BadConfig(
                f"evaluation.score: {section.score} is not a function (task, answer) -> number"
            )
        for binding in config.reef:
            choose(config, binding.scenario, binding.recipe)
        return cls(config, tasks, verifier)

    def for_candidate(self, candidate: CandidateProposed) -> tuple[EvaluationPlan, Rule]:
        """The method and the rule for one candidate."""
        section = self.config.evaluation
        chosen = choose(self.config, candidate.scenario, candidate.lineage.recipe)
        return chosen, Rule(
            chosen.policy, section.min_win_margin, section.confidence, section.min_effect
        )


def _tasks(section: EvaluationSection) -> tuple[Task, ...]:
    given = (
        resolve(section.tasks)
        if isinstance(section.tasks, str) and section.tasks
        else section.tasks
    )
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
