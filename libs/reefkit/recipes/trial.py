"""`ctx.trial`: harness trees side by side on a minibatch of tasks, outside the release path."""

#     tree + task --messages--> models["served"].chat --> answers --verifier--> numbers, words
#
# A task has one seed for all trees, so that parent and child meet the same luck. Every call counts
# in the budget of `served`, which also keeps the answers of a call that was interrupted.

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import fsum
from typing import Any

from reefcommon.config_sections import EvaluationSection
from reefcommon.errors import Poison
from reefcommon.evaluation import evaluation_of, score_function
from reefcommon.evaluator import BadTask, Evaluator, ScoreFunction, Task, as_tasks
from reefcommon.harness.admission import CHAT, Adapter, check_tree
from reefcommon.harness.delivery import episode_messages
from reefcommon.harness.tree import Tree
from reefcommon.recipe import Recipe
from reefcommon.recipe_context import Model, ModelFailed, RunProgram, TrialResult
from reefcommon.statistics import independent_seed
from reefkit.limited import limited
from reefkit.verifier import Verifier

PURPOSE = "trial"
AT_ONCE = 16
"""Calls of a trial under way; the model's own limit may be lower."""


@dataclass(frozen=True)
class Minibatches:
    """The trials of a recipe in a scenario."""

    scenario: str
    recipe: Recipe
    section: EvaluationSection
    run: RunProgram | None = None
    limit_s: float = 120.0
    adapter: Adapter = CHAT

    @cached_property
    def verifier(self) -> Verifier:
        """The verifier of the evaluation. Raises BadConfig."""
        own = evaluation_of(self.recipe, self.recipe.name)
        evaluator = own if isinstance(own, Evaluator) else Evaluator()
        function = score_function(self.section, self.scenario, evaluator)
        runner = self.section.runner_of(self.scenario) or evaluator.runner
        if runner == "agent":  # its function scores runs, and here the model alone is asked
            name = f"{self.scenario}: runner agent, so ctx.trial needs score="
            return Verifier(name, None, Evaluator(), self.limit_s, self.run)
        return Verifier(self.scenario, function, evaluator, self.limit_s, self.run, runner)

    async def trial(
        self,
        served: Model,
        candidates: Sequence[Tree],
        tasks: Sequence[Any],
        *,
        score: ScoreFunction | None = None,
        samples: int = 1,
        seed: int = 0,
        **params: Any,
    ) -> list[TrialResult]:
        """Run a minibatch. See `recipe_context.Context.trial`."""
        try:
            read = as_tasks(tasks)
        except BadTask as error:
            raise Poison(f"ctx.trial: {error}") from error
        for tree in candidates:
            check_tree(tree, self.adapter)
        sampling: dict[str, Any] = {"max_tokens": self.section.max_tokens, "n": samples}
        sampling |= {"temperature": self.section.temperature, **params}
        episode = partial(self._episode, served, score, sampling, seed)
        jobs = [partial(episode, tree, task) for tree in candidates for task in read]
        # Those under way end: they are paid for, and kept for the next try.
        rows = await limited(AT_ONCE, jobs, finish=True)
        size = len(read)
        parts = [rows[at * size : (at + 1) * size] for at in range(len(candidates))]
        return [_result(part) for part in parts]

    async def _episode(
        self,
        served: Model,
        score: ScoreFunction | None,
        sampling: Mapping[str, Any],
        seed: int,
        tree: Tree,
        task: Task,
    ) -> tuple[float, str, str]:
        messages = episode_messages(tree, task.messages, rules_at=self.section.rules_at)
        drawn = {"seed": seed_of(self.scenario, task, seed), **sampling}
        replies = await served.chat(messages, purpose=PURPOSE, **drawn)
        if len(replies) != sampling["n"]:
            raise ModelFailed(f"served: {len(replies)} answers instead of {sampling['n']}")
        scored = await self.verifier.scores(task, [reply.text for reply in replies], score)
        mean = fsum(item.number for item in scored) / len(scored)
        return mean, replies[0].text, scored[0].words


def seed_of(scenario: str, task: Task, seed: int) -> int:
    # Equal for all candidates, and in every minibatch: a task's position does not count.
    own = task.given.get("id", "") if isinstance(task.given, Mapping) else ""
    messages = json.dumps(task.messages, sort_keys=True, default=str)
    return independent_seed(PURPOSE, scenario, seed, own, messages)


def _result(rows: Sequence[tuple[float, str, str]]) -> TrialResult:
    scores, answers, words = zip(*rows, strict=True) if rows else ((), (), ())
    return TrialResult(tuple(scores), tuple(answers), tuple(words))
