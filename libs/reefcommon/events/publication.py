"""The release chain, commands on it, and dead letters."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from reefcommon.events.base import Event, Kind, Operation, Value
from reefcommon.events.learning import Evaluation, Lineage


class Partner(Value):
    """A content that was judged, and became a release, together with another."""

    candidate_id: str
    kind: Kind
    content_id: str


class Release(Value):
    """A link of a scenario's append-only chain.

    `contents` maps each kind to its content, `loads` each group of kinds to its load id. `load_id`
    is that of the weights. `created_at`: when it began to serve; if pending, when it was made.
    """

    release_id: str
    scenario: str
    sequence: int
    parent_id: str | None = None
    kind: Kind
    content_id: str
    contents: dict[str, str] = {}
    operation: Operation
    load_id: str
    loads: dict[str, str] = {}
    adapter: str | None = None
    candidate_id: str | None = None
    partner: Partner | None = None
    metrics: dict[str, float] = {}
    evaluation: Evaluation | None = None
    lineage: Lineage = Lineage()
    created_at: AwareDatetime
    reason: str = ""


class ReleasePublished(Event):
    """The head of the chain has advanced to this release. `event_id` is its id."""

    type: Literal["release.published.v1"] = "release.published.v1"
    release: Release
    command_id: str | None = None


class ReleasePending(Event):
    """A winner that waits for review. `event_id` is the candidate's id."""

    type: Literal["release.pending.v1"] = "release.pending.v1"
    release: Release


class ReleaseRejected(Event):
    """A candidate or a command led to no release. `event_id` is a digest of its id."""

    type: Literal["release.rejected.v1"] = "release.rejected.v1"
    outcome: Literal["rejected", "conflicted", "aborted"]
    reason: str
    candidate_id: str | None = None
    command_id: str | None = None
    evaluation: Evaluation | None = None


class ScenarioHeld(Event):
    """Winners of the scenario wait for a person, for a `reason`; None: no more."""

    type: Literal["scenario.held.v1"] = "scenario.held.v1"
    reason: str | None = None
    command_id: str


class ServingSynced(Event):
    """A serving node holds a release and answered a probe with it."""

    type: Literal["serving.synced.v1"] = "serving.synced.v1"
    release_id: str
    load_id: str
    node: str
    adapter: str | None = None
    duration_ms: float


class ScenarioCreateRequested(Event):
    """A request to create a scenario. `event_id` is the command's id."""

    type: Literal["scenario.create.requested.v1"] = "scenario.create.requested.v1"


class RollbackRequested(Event):
    """A request to serve the contents of an earlier release again.

    `expected_head`: refused if another release is the head by then; "": any may be.
    """

    type: Literal["rollback.requested.v1"] = "rollback.requested.v1"
    release_id: str
    reason: str = ""
    expected_head: str = ""


class PromoteRequested(Event):
    """A request to publish a pending release."""

    type: Literal["promote.requested.v1"] = "promote.requested.v1"
    release_id: str
    reason: str = ""


class HoldRequested(Event):
    """A request to let winners wait for a person, for a `reason`; None: no more."""

    type: Literal["hold.requested.v1"] = "hold.requested.v1"
    reason: str | None = None


class DeadLettered(Event):
    """An event that could not be handled. `event_id` is a digest of its group and place."""

    type: Literal["event.dead.v1"] = "event.dead.v1"
    group: str
    topic: str
    partition: int
    offset: int
    key: str | None = None
    value: str = Field(description="the original bytes, base64")
    reason: str
    attempts: int
    key_base64: str | None = None
    headers: tuple[tuple[str, str], ...] | None = Field(
        None, description="the original headers, values in base64"
    )


class DeadLetterSettled(Event):
    """A dead letter was retried or dropped. `event_id` is a digest of its id: the first counts."""

    type: Literal["event.dead.settled.v1"] = "event.dead.settled.v1"
    dead_id: str
    action: Literal["retried", "dropped"]


Publication = Annotated[
    ReleasePublished | ReleasePending | ReleaseRejected | ScenarioHeld | ServingSynced,
    Field(discriminator="type"),
]
Command = Annotated[
    ScenarioCreateRequested | RollbackRequested | PromoteRequested | HoldRequested,
    Field(discriminator="type"),
]
