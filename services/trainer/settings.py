"""What the trainer can be told: `REEF_TRAINER_*`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import HostSettings


class Settings(HostSettings):
    """Bounds and pace of this service. Where the outside systems are: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix="REEF_TRAINER_")

    step_timeout_s: float = Field(
        3600.0, gt=0, description="a step that takes longer is killed and tried again"
    )
    niceness: int = Field(
        10,
        ge=0,
        le=19,
        description="nice value of the step processes, so that serving on the same machine goes first",
    )
    kept_states: int = Field(
        4,
        ge=1,
        description="checkpoints of published releases kept per recipe, newest first, beside the head's",
    )
    max_attempts: int = Field(
        5, ge=1, description="tries of a job whose step process dies; then its samples are refused"
    )
