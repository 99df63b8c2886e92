"""The knobs of GEPA."""

from typing import Any, Literal

from pydantic import Field

from recipes.gepa.search import Select
from recipes.reflection.asking import ProposerKnobs

Component = Literal["rules", "skill"]


class GepaKnobs(ProposerKnobs):
    validation: str | tuple[Any, ...]
    """tasks that every kept candidate answers, as `evaluation.tasks`; or package.module:NAME"""
    train: str | tuple[Any, ...] = ()
    """tasks of the minibatches; absent: the requests of the reports"""
    components: tuple[Component, ...] = Field(("rules", "skill"), min_length=1)
    """the texts that evolve, in turn"""
    batch_size: int = Field(3, ge=1, le=64, description="reports of a window")
    iterations: int = Field(1, ge=1, le=1000, description="iterations of a window")
    minibatch_size: int = Field(3, ge=1, le=64, description="tasks of `train` in an iteration")
    max_metric_calls: int = Field(150, ge=1, description="answers to tasks in all")
    samples: int = Field(1, ge=1, le=64, description="answers to a task, whose mean counts")
    skip_perfect_score: bool = True
    """a minibatch on which the parent is perfect ends the iteration"""
    perfect_score: float = 1.0
    """the highest score of a task"""
    select: Select = "fronts"
    """best: the highest mean is always the parent, which is hill climbing, the control"""
    max_text_chars: int = Field(4000, ge=40, le=16_000, description="of a component's text")
    skill_description: str = Field("How tasks of this kind are done here.", min_length=1)
    """of the skill, by which the agent looks it up"""
    trust_reports: bool = True
    """scores of reports stand for the serving parent's; false: it answers the requests again"""
    seed: int = 0
    """of the random stream, and of the answers to tasks"""
