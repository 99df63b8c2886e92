"""Settings of the trainer."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import HostSettings


class Settings(HostSettings):
    """Limits and pace of this service (`REEF_TRAINER_*`)."""

    model_config = SettingsConfigDict(env_prefix="REEF_TRAINER_")

    step_timeout_s: float = Field(3600.0, gt=0)
    """a step that takes longer is killed and tried again"""
    # Linux weighs nice 0 with 1024, 3 with 526, 10 with 110 and 13 with 56. `reef serve` starts the
    # trainer at 7, so that a step, at 10, gets a tenth of a core beside a busy process.
    niceness: int = Field(3, ge=0, le=19)
    """added to the trainer's nice value for the step processes: serving on the same machine goes
    first, and a step still gets its share"""
    kept_states: int = Field(4, ge=1)
    """saved states of published releases kept per recipe, newest first, beside the head's"""
    max_attempts: int = Field(5, ge=1)
    """tries of a job whose step process dies; then its samples are refused"""
