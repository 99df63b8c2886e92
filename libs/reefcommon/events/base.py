"""The base of all events, and their enumerations."""

from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict

Kind = Literal["base", "lora", "checkpoint", "harness", "routing", "solution"]
Operation = Literal[
    "creation", "training", "harness", "routing", "manual", "rollback", "promote", "recovery"
]
Outcome = Literal["ok", "aborted", "failed", "upstream_incomplete"]
Verdict = Literal["select", "reject", "evaluation_failed"]
Policy = Literal[
    "score_comparison", "paired_confidence", "no_regression", "strictly_better", "floor", "always"
]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class Event(Value):
    event_id: str
    at: AwareDatetime
    scenario: str
    traceparent: str = ""
