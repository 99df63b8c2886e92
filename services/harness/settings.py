"""What the harness service can be told: `REEF_HARNESS_*`."""

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from reefcommon.errors import BadConfig
from reefcommon.settings import SystemSettings, explain, unknown_variables

PREFIX = "REEF_HARNESS_"
# Read by `SystemSettings`, where it says how others reach this service.
SHARED = {"REEF_HARNESS_URL"}


class Settings(BaseSettings):
    """Bounds and pace of this service. Where the outside systems are: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    port: int | None = Field(None, ge=1, le=65535, description="own HTTP port; absent: that of REEF_HARNESS_URL")
    settled_kept_s: float = Field(
        30 * 24 * 3600, gt=0, description="how long used and refused samples and ended jobs are remembered one by one"
    )
    rejected_kept_s: float = Field(
        7 * 24 * 3600, gt=0, description="how long the content of a candidate that came to nothing stays in the artifact store"
    )
    retention_every_s: float = Field(600.0, gt=0, description="pace at which what was kept long enough is removed")
    first_delay_s: float = Field(0.25, gt=0, description="wait before a step that failed is tried again; doubled each time")
    max_delay_s: float = Field(5.0, gt=0, description="longest wait between two tries")
    max_attempts: int = Field(6, ge=1, description="tries of a step that fails for a reason other than an outside system being away")
    drain_s: int = Field(15, ge=1, description="deadline for a clean stop")

    def own_port(self, system: SystemSettings) -> int:
        """The port that this service listens on."""
        return self.port or urlsplit(system.harness_url).port or 8913

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
