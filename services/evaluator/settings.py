"""Settings of the evaluator."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import ServiceSettings


class Settings(ServiceSettings):
    """Pace and retries (`REEF_EVALUATOR_*`). Other addresses: `SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix="REEF_EVALUATOR_")

    pairs_at_once: int = Field(4, ge=1, le=256, description="pairs of episodes at the same time")
    scores_at_once: int = Field(1, ge=1, le=256)
    """held-out samples of a trial that a node scores at a time"""
    episode_attempts: int = Field(5, ge=1)
    """tries of an episode, of loading and of the first answer"""
    first_delay_s: float = Field(0.5, ge=0, description="wait before the second try; then doubled")
    episode_within_s: float = Field(120.0, gt=0, description="longest try of an episode")
    long_wait_s: float = Field(120.0, gt=0)
    """a candidate that is without a verdict for longer is logged, with the reason"""
    joint_wait_s: float = Field(120.0, ge=0)
    """how long a candidate of `gate: joint` waits for a partner; then it stands alone"""
    reread_log_every_s: float = Field(3600.0, gt=0)
    """interval of the search in the log for candidates that Redis has lost"""
    look_again_every_s: float = Field(2.0, gt=0)
    """interval of the checks for candidates that wait for evidence"""
