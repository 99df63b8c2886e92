"""What the harness service can be told: `REEF_HARNESS_*`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import HostSettings


class Settings(HostSettings):
    """Bounds and pace of this service. Where the outside systems are: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix="REEF_HARNESS_")

    max_attempts: int = Field(
        6,
        ge=1,
        description="tries of a step that fails for a reason other than an outside system being away",
    )
