"""One piece of work of the publisher, and the states that it goes through. Each state is durable before the next step begins.

evaluated -> staged -> head_advanced -> announced -> retired
     |          |
     |          +-> conflicted          another release became the head first
     +-> rejected | aborted | pending | conflicted
"""

from typing import Literal

from pydantic import Field

from reefcommon.events import Evaluation, Release, ReleaseRejected, Value

State = Literal[
    "evaluated",
    "staged",
    "head_advanced",
    "announced",
    "retired",
    "rejected",
    "conflicted",
    "aborted",
    "pending",
]
Outcome = Literal["rejected", "conflicted", "aborted"]
ENDED: frozenset[State] = frozenset({"retired", "rejected", "conflicted", "aborted", "pending"})


class Work(Value):
    """A candidate or a command on its way to a release. `work_id` is the id of the candidate or of the command.

    `nodes` maps each node that holds the release to how long that took, in milliseconds.
    """

    work_id: str
    scenario: str
    state: State = "evaluated"
    release: Release | None = None
    candidate_id: str | None = None
    command_id: str | None = None
    evaluation: Evaluation | None = None
    nodes: dict[str, float] = Field(default_factory=dict)
    reason: str = ""
    rebased: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.state in ENDED

    @property
    def planned(self) -> Release:
        """The release that this work leads to. Only work that was turned down before planning has none."""
        assert self.release is not None
        return self.release

    def to(self, state: State, **changes: object) -> "Work":
        """This work in its next state."""
        return self.model_copy(update={"state": state, **changes})


class Turned(Exception):
    """Planning found that there is nothing to publish: the outcome and the reason for the event."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome
        self.reason = reason


def rejection_fields(work: Work, outcome: Outcome, reason: str) -> dict[str, object]:
    """The fields of the `ReleaseRejected` that tells of this work's end, but for id and time."""
    fields: dict[str, object] = {
        "outcome": outcome,
        "reason": reason,
        "candidate_id": work.candidate_id,
        "command_id": work.command_id,
        "evaluation": work.evaluation,
    }
    assert fields.keys() <= ReleaseRejected.model_fields.keys()
    return fields
