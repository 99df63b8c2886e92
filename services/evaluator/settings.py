"""Settings of the evaluator: `REEF_EVALUATOR_*`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import ServiceSettings


class Settings(ServiceSettings):
    """Pace and retries. The addresses of other systems are in `SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix="REEF_EVALUATOR_")

    pairs_at_once: int = Field(
        4, ge=1, le=256, description="pairs of episodes that run at the same time"
    )
    scores_at_once: int = Field(
        1, ge=1, le=256, description="held-out samples of a trial that a node scores at a time"
    )
    episode_attempts: int = Field(
        5, ge=1, description="tries of an episode, of loading and of the first answer"
    )
    first_delay_s: float = Field(
        0.5, ge=0, description="wait before the second try; doubled each time"
    )
    episode_within_s: float = Field(120.0, gt=0, description="longest try of an episode")
    look_again_every_s: float = Field(
        2.0, gt=0, description="interval of the checks for candidates that wait for evidence"
    )
