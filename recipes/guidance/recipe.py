"""Guidance: the trained model says how to go on, a frozen executor writes the solution."""

#     guide       reads the task and a summary of the parent (its value and words, not itself) and
#                 writes <guidance>...</guidance>
#     malformed   reward 0, and the executor is not asked
#     executor    a model of `models:`, or a function: parent and guidance -> a solution
#     verifier    the score of this solution is the guide's reward
#     the rest    archive, grid, advantages and loss of recipes/ttt_discover
#
# signal      a verifier's score of the executor's solution
# acquisition proactive, as TTT-Discover
# target      a LoRA adapter of the guide, and the best solution. The tokens of the guidance train:
#             not a thought before it, and never the executor's. If the form is wrong, all do
# errors      of executor or verifier stop the step, which begins again; none is a reward of 0
# crash       as TTT-Discover; an executor's answer is kept until the step is verified
# run         reef serve -c recipes/guidance/examples/row_pattern/serve.yaml
#
# The form of an answer is in form.py, the step in learner.py.

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from recipes.guidance.form import read_guidance
from recipes.ttt_discover import knobs as search_knobs
from recipes.ttt_discover.archive import Node, Solution
from recipes.ttt_discover.problem import Problem, Verified
from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from reefcommon import recipe
from reefcommon.errors import BadConfig
from reefcommon.recipe import Dimensions, Learner
from reefcommon.recipe_context import Asked, Context, SeekContext
from reefcommon.recipe_loading import resolve

INSTRUCTION = (
    "You do not write the solution. Another solver does, and reads your guidance. Say in a few "
    "sentences which idea it should try next, and why. Answer with <guidance>your "
    "guidance</guidance> and no other text."
)
FOLLOW = "Follow this guidance:\n{guidance}"
KEPT = "executed-"
Execute = Callable[[str, Node], str]
"""(guidance, parent) -> a solution, as the problem's verifier reads it"""
_SEED = Node("seed", Solution(0.0, ""), seed=True)


class Knobs(search_knobs.Knobs):
    executor: str = Field(
        "executor", description="a model of `models:`, or package.module:NAME of a function"
    )
    executor_max_tokens: int = Field(8192, ge=1, description="tokens of an executor's answer")
    instruction: str = Field(INSTRUCTION, description="the end of the guide's prompt")
    tags: bool = Field(True, description="false: the whole answer is the guidance, without tags")
    pattern: str = Field(".+", description="regular expression that the whole guidance must match")
    groups_per_step: int = Field(2, ge=1, description="parents of a step")
    rollouts_per_group: int = Field(4, ge=3, description="rollouts from each parent")
    max_tokens: int = Field(1024, ge=1, description="tokens of an answer of the guide at most")

    @field_validator("pattern")
    @classmethod
    def _an_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"pattern is no regular expression: {error}") from None
        return value


@dataclass(frozen=True, slots=True)
class Guided:
    """A problem as the guide sees it. `verify` judges the solution of the executor."""

    task: Problem
    knobs: Knobs

    @property
    def name(self) -> str:
        return self.task.name

    def identity(self) -> Mapping[str, Any]:
        names = ("executor", "executor_max_tokens", "instruction", "tags", "pattern")
        mine = {name: getattr(self.knobs, name) for name in names}
        return {**self.task.identity(), "guidance": {**mine, "follow": FOLLOW}}

    def messages(self, parent: Node) -> list[dict[str, Any]]:
        summary = ""
        if not parent.seed:
            words = parent.solution.words or "(no words)"
            summary = f"\n\nAn attempt has the value {parent.value:.6g}: {words}"
        text = self.task.messages(_SEED)[-1]["content"]
        return [{"role": "user", "content": f"{text}{summary}\n\n{self.knobs.instruction}"}]

    async def verify(self, answer: str, ctx: Context) -> Verified:
        return await self.task.verify(answer, ctx)

    def check(self, figure: Mapping[str, Any]) -> Verified:
        return self.task.check(figure)

    def picture(self, solution: Solution) -> bytes:
        return self.task.picture(solution)


class GuidanceRecipe(TTTDiscoverRecipe):
    name = "guidance"
    summary = "a small model learns to advise a frozen executor while it searches one problem"
    dimensions = Dimensions(
        signal="a verifier's score of the executor's solution",
        acquisition="proactive",
        evolves=("lora", "solution"),
    )
    shown = (
        "no gain: 26 circles after 240 calls, tiny model, one seed: 2.304, a frozen guide 2.307 "
        "(`reef demo --recipe guidance --arms all --minutes 2`)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def __init__(self, knobs: recipe.Knobs) -> None:
        super().__init__(knobs)
        self.task, self.problem = self.problem, Guided(self.problem, self.knobs)
        named = ":" in self.knobs.executor
        self.function: Execute | None = resolve(self.knobs.executor) if named else None

    async def verify(self, asked: Asked, parent: Node, ctx: SeekContext) -> Verified:
        guidance = read_guidance(asked.text, self.knobs.pattern, tags=self.knobs.tags)
        if guidance is None:
            return Verified(0.0, words="malformed guidance")
        return await self.problem.verify(await self._execute(ctx, asked, guidance, parent), ctx)

    def verified(self, ctx: SeekContext) -> None:
        for key in ctx.store.keys(KEPT):
            ctx.store.drop(key)

    async def _execute(self, ctx: SeekContext, asked: Asked, guidance: str, parent: Node) -> str:
        """Return the executor's solution; after a crash the same."""
        if self.function is not None:
            return self.function(guidance, parent)
        kept: str | None = ctx.store.get(KEPT + asked.receipt)
        if kept is None:
            kept = await self._ask_model(ctx, guidance, parent)
            ctx.store.put(KEPT + asked.receipt, kept)
            await ctx.commit()
        return kept

    async def _ask_model(self, ctx: SeekContext, guidance: str, parent: Node) -> str:
        name = self.knobs.executor
        if name not in ctx.models:
            raise BadConfig(f"there is no model {name!r}: add it to `models:`, or set `executor`")
        *before, last = self.task.messages(parent)
        text = f"{last['content']}\n\n{FOLLOW.format(guidance=guidance)}"
        (reply,) = await ctx.models[name].chat(
            [*before, {**last, "content": text}],
            purpose="execute guidance",
            temperature=0.0,
            max_tokens=self.knobs.executor_max_tokens,
        )
        return reply.text

    def learner(self, model_path: Path) -> Learner:
        from recipes.guidance.learner import GuidanceLearner  # torch: in the step process

        return GuidanceLearner(self.knobs, model_path)
