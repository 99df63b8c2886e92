"""What the publisher can be told: `REEF_PUBLISHER_*`."""

from typing import Literal, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from reefcommon.errors import BadConfig
from reefcommon.settings import explain, unknown_variables

PREFIX = "REEF_PUBLISHER_"
# Read by `SystemSettings`, where it says how others reach this service.
SHARED = {"REEF_PUBLISHER_URL"}


class Settings(BaseSettings):
    """Pace and patience of this service. Where the outside systems are: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    port: int | None = Field(None, ge=1, le=65535, description="own HTTP port; absent: that of REEF_PUBLISHER_URL")
    reconcile_every_s: float = Field(1.0, gt=0, description="pace at which every node is compared with what it must hold")
    stage_within_s: float = Field(60.0, gt=0, description="longest that one node may take to load a release and to answer the probe")
    weight_transfer: Literal["path", "gloo", "nccl", "off"] = Field(
        "path", description="how full weights reach the nodes: read from the state directory, or by torch.distributed; off: not at all"
    )
    weight_transfer_host: str = Field("127.0.0.1", description="address at which serving nodes reach this service for gloo and nccl")
    weight_step_within_s: float = Field(30.0, gt=0, description="longest that one step of replacing a node's full weights may take")
    work_kept_s: int = Field(7 * 24 * 3600, ge=60, description="how long an ended piece of work is remembered, against redelivery")
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
