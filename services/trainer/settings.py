"""What the trainer can be told: `REEF_TRAINER_*`."""

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from reefcommon.errors import BadConfig
from reefcommon.settings import SystemSettings, explain, unknown_variables

PREFIX = "REEF_TRAINER_"
# Read by `SystemSettings`, where it says how others reach this service.
SHARED = {"REEF_TRAINER_URL"}


class Settings(BaseSettings):
    """Bounds and pace of this service. Where the outside systems are: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    port: int | None = Field(None, ge=1, le=65535, description="own HTTP port; absent: that of REEF_TRAINER_URL")
    step_timeout_s: float = Field(3600.0, gt=0, description="a step that takes longer is killed and tried again")
    niceness: int = Field(10, ge=0, le=19, description="nice value of the step processes, so that serving on the same machine goes first")
    kept_states: int = Field(4, ge=1, description="checkpoints of published releases kept per recipe, newest first, beside the head's")
    settled_kept_s: float = Field(30 * 24 * 3600, gt=0, description="how long settled samples and jobs are remembered one by one")
    rejected_kept_s: float = Field(
        7 * 24 * 3600, gt=0, description="how long the content of a rejected candidate stays in the artifact store"
    )
    retention_every_s: float = Field(600.0, gt=0, description="pace at which what was kept long enough is removed")
    first_delay_s: float = Field(0.25, gt=0, description="wait before a step that failed is tried again; doubled each time")
    max_delay_s: float = Field(5.0, gt=0, description="longest wait between two tries")
    max_attempts: int = Field(5, ge=1, description="tries of a job whose step process dies; then its samples are refused")
    drain_s: int = Field(15, ge=1, description="deadline for a clean stop")

    def own_port(self, system: SystemSettings) -> int:
        """The port that this service listens on."""
        return self.port or urlsplit(system.trainer_url).port or 8912

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
