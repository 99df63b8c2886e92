"""What the evaluator can be told: `REEF_EVALUATOR_*`."""

from typing import Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from reefcommon.errors import BadConfig
from reefcommon.settings import explain, unknown_variables

PREFIX = "REEF_EVALUATOR_"
# Read by `SystemSettings`, where it says how others reach this service.
SHARED = {"REEF_EVALUATOR_URL"}


class Settings(BaseSettings):
    """Pace and patience of this service. Where the outside systems are: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    port: int | None = Field(None, ge=1, le=65535, description="own HTTP port; absent: that of REEF_EVALUATOR_URL")
    pairs_at_once: int = Field(4, ge=1, le=256, description="pairs of episodes that run at the same time")
    episode_attempts: int = Field(5, ge=1, description="tries of one episode before the evaluation has failed")
    first_delay_s: float = Field(0.5, ge=0, description="wait before the second try of an episode; doubled each time")
    episode_within_s: float = Field(120.0, gt=0, description="longest that one try of an episode may take")
    look_again_every_s: float = Field(2.0, gt=0, description="pace at which candidates that wait for evidence are looked at")
    drain_s: int = Field(15, ge=1, description="deadline for a clean stop")

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Read the settings from the environment.

        Raises:
            BadConfig: a value is not allowed, or a variable with this prefix is unknown.
        """
        known = {PREFIX + name.upper() for name in cls.model_fields} | SHARED
        if unknown := unknown_variables(known, PREFIX):
            raise BadConfig(f"unknown settings: {', '.join(unknown)}; allowed: {', '.join(sorted(known))}")
        try:
            return cls(**overrides)  # type: ignore[arg-type]
        except ValidationError as error:
            raise BadConfig(explain(error, prefix=PREFIX)) from None
