"""A domain of tasks: prompts of both roles, how a proposal is read, how an answer is scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from reefcommon.recipe_context import Context, Messages

if TYPE_CHECKING:
    from recipes.self_play.pool import Known

Role = Literal["designer", "solver"]


@dataclass(frozen=True, slots=True)
class Task:
    """A task. Equal texts are the same task; `hint` is shown in hinted plays alone."""

    text: str
    reference: str
    hint: str


class Domain(Protocol):
    @property
    def name(self) -> str: ...

    def identity(self) -> Mapping[str, Any]:
        """Return whatever makes it another domain if it differs: texts, rules, limits."""

    def designer_messages(self, frontier: Sequence["Known"]) -> Messages:
        """Return the designer's prompt. `frontier`: tasks within reach, by regret."""

    def parse(self, answer: str) -> Task | None:
        """Read a proposal; None if it is no task."""

    def draw(self, seed: int) -> Task:
        """Return a task by chance, uniformly: the control arm's designer."""

    def solver_messages(self, task: Task, *, hinted: bool) -> Messages: ...

    async def score(self, task: Task, answer: str, ctx: Context) -> float:
        """Return the score in [0, 1]. An error is an error of the verifier, not a wrong answer."""

    def sampling(self, role: Role) -> Mapping[str, Any]:
        """Return parameters of the role's requests, `max_tokens` among them."""
