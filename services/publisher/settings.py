"""What the publisher can be told: `REEF_PUBLISHER_*`."""

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import ServiceSettings


class Settings(ServiceSettings):
    """Pace and patience of this service. Where the outside systems are: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix="REEF_PUBLISHER_")

    reconcile_every_s: float = Field(
        1.0, gt=0, description="pace at which every node is compared with what it must hold"
    )
    stage_within_s: float = Field(
        60.0,
        gt=0,
        description="longest that one node may take to load a release and to answer the probe",
    )
    weight_transfer: Literal["path", "gloo", "nccl", "off"] = Field(
        "path",
        description="how full weights reach the nodes: read from the state directory, or by torch.distributed; off: not at all",
    )
    weight_transfer_host: str = Field(
        "127.0.0.1",
        description="address at which serving nodes reach this service for gloo and nccl",
    )
    weight_step_within_s: float = Field(
        30.0, gt=0, description="longest that one step of replacing a node's full weights may take"
    )
    work_kept_s: int = Field(
        7 * 24 * 3600,
        ge=60,
        description="how long an ended piece of work is remembered, against redelivery",
    )
