"""Keys of `evaluation` in `serve.yaml` about a floor, promoted tasks and rechecks."""

from pydantic import BaseModel, ConfigDict, Field


class GateKeys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    floor_score: float = Field(0.0, allow_inf_nan=False)
    """floor: select if the candidate's own mean is at least this; the head's is only shown"""
    promote_failures: bool = False
    """a prompt whose answer was scored low becomes a task of harness candidates, if the runner is
    chat and the verifier can score that answer"""
    promote_max_score: float = Field(0.0, allow_inf_nan=False)
    """such an answer is scored at most this"""
    max_promoted_tasks: int = Field(50, ge=1, le=1000)
    """such tasks of a scenario; the oldest stay"""
    max_promoted_per_client: int = Field(5, ge=1, le=1000)
    """such tasks of one client (`x-reef-tag-client`; all without a name count as one)"""
    recheck_every: int = Field(0, ge=0)
    """after so many verdicts at a harness release it is compared again with the harness that it
    replaced, and rolled back if it loses; 0: never"""
    recheck_after_s: float = Field(0.0, ge=0, allow_inf_nan=False)
    """the same after so many seconds"""
