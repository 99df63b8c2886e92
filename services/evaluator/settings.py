"""What the evaluator can be told: `REEF_EVALUATOR_*`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import ServiceSettings


class Settings(ServiceSettings):
    """Pace and patience of this service. Where the outside systems are: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix="REEF_EVALUATOR_")

    pairs_at_once: int = Field(
        4, ge=1, le=256, description="pairs of episodes that run at the same time"
    )
    episode_attempts: int = Field(
        5,
        ge=1,
        description="tries of an episode, of loading, of the first answer before it has failed",
    )
    first_delay_s: float = Field(
        0.5, ge=0, description="wait before the second try; doubled each time"
    )
    episode_within_s: float = Field(
        120.0, gt=0, description="longest that one try of an episode may take"
    )
    look_again_every_s: float = Field(
        2.0, gt=0, description="pace at which candidates that wait for evidence are looked at"
    )
