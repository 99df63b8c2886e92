"""What a run leaves behind, as values: what clients hold, what lies in the log, the store, the
ledger and Redis, what was broken when.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reefcommon.events import Event, SampleReady


@dataclass(frozen=True, slots=True)
class Answer:
    """One request for a completion as its client saw it. `complete`: status 200 and the whole
    answer, its end included.

    `sent_at`, `ended_at`: Unix time, seconds. `turn` counts the turns of `conversation` from 0.
    `left`: the client went away on purpose.
    """

    conversation: str
    turn: int
    sent_at: float
    ended_at: float
    status: int = 0
    complete: bool = False
    receipt: str = ""
    content: str = ""
    release_id: str = ""
    key: str = ""
    stream: bool = False
    left: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """One report as its client saw it; acknowledged with status 202."""

    references: tuple[str, ...]
    sent_at: float
    ended_at: float
    status: int = 0
    report_id: str = ""
    key: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Logged:
    """One event where it lies; `digest` is that of its bytes."""

    topic: str
    partition: int
    offset: int
    event: Event
    digest: str = ""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One row of the store's records."""

    record_id: str
    digest: str
    content: str
    outcome: str


@dataclass(frozen=True, slots=True)
class StoredReport:
    """One row of the store's reports."""

    report_id: str
    state: str
    sample_id: str | None


@dataclass(frozen=True, slots=True)
class LedgerJob:
    """One job of the trainer's ledger."""

    job_id: str
    binding: str
    state: str
    sample_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """What Redis holds of one scenario; the chain newest first."""

    head: str
    chain: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Happened:
    """One fault as it was done. Unix times: begun, over (the last part may come back from here on),
    recovered (None: not in time).

    `signals` counts the kills and pauses by part, `ready_s` the seconds until each part was ready
    again.
    """

    number: int
    kind: str
    parts: tuple[str, ...]
    began_at: float
    over_at: float
    recovered_at: float | None
    mode: str = ""
    ready_s: Mapping[str, float] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything about one run. Lists of the log are in order within a partition."""

    answers: tuple[Answer, ...] = ()
    reports: tuple[Reported, ...] = ()
    log: tuple[Logged, ...] = ()
    records: tuple[StoredRecord, ...] = ()
    stored_reports: tuple[StoredReport, ...] = ()
    samples: tuple[SampleReady, ...] = ()
    jobs: tuple[LedgerJob, ...] = ()
    heads: Mapping[str, Heads] = field(default_factory=dict)
    happened: tuple[Happened, ...] = ()
    max_staleness: int = 0
