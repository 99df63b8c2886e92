"""A piece of work and its states. Each is durable before the next step begins."""

# evaluated -> staged -> head_advanced -> announced -> retired
#      |          |
#      |          +-> conflicted          another release became the head first
#      |          +-> requeued            the same, and the candidate is evaluated again
#      +-> rejected | aborted | pending | conflicted | requeued

from typing import Literal, get_args

from pydantic import AwareDatetime, Field

from reefcommon.events import CandidateProposed, Evaluation, Release, Value

Outcome = Literal["rejected", "conflicted", "aborted"]
Ended = Literal["retired", "pending", "requeued", Outcome]
State = Literal["evaluated", "staged", "head_advanced", "announced", Ended]
ENDED: frozenset[State] = frozenset(get_args(Ended))


class Work(Value):
    """A candidate or a command on its way to a release; `work_id` is its id.

    `nodes` maps each node with the release to the milliseconds of its loading.
    """

    work_id: str
    scenario: str
    state: State = "evaluated"
    release: Release | None = None
    candidate_id: str | None = None
    candidate: CandidateProposed | None = None
    partner: CandidateProposed | None = None
    command_id: str | None = None
    evaluation: Evaluation | None = None
    nodes: dict[str, float] = Field(default_factory=dict)
    reason: str = ""
    rebased: int = 0
    # the head that a rollback was meant for; "": any
    only_on: str = ""
    began_at: AwareDatetime | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def planned(self) -> Release:
        """The release of this work. Work refused before planning has none."""
        assert self.release is not None
        return self.release

    def to(self, state: State, **changes: object) -> "Work":
        return self.model_copy(update={"state": state, **changes})


class NotPublished(Exception):
    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome
        self.reason = reason
