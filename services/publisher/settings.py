"""Settings of the publisher."""

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import ServiceSettings


class Settings(ServiceSettings):
    """Intervals and limits (`REEF_PUBLISHER_*`). Other addresses: `SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix="REEF_PUBLISHER_")

    reconcile_every_s: float = Field(1.0, gt=0)
    """how often nodes are compared with the heads; at rest, every second time is left out"""
    stage_within_s: float = Field(60.0, gt=0)
    """longest time of one node to load a release and answer the probe"""
    publish_within_s: float = Field(120.0, gt=0)
    """a release that no node could take for this long is refused with a verdict"""
    node_slow_for_s: float = Field(60.0, ge=0)
    """a node that answers too slowly for this long is set apart; one that is away, at once"""
    weight_transfer: Literal["path", "gloo", "nccl", "off"] = "path"
    """full weights reach the nodes by the state directory, by torch.distributed, or not at all"""
    weight_transfer_host: str = "127.0.0.1"
    """address of this service for gloo and nccl, as the nodes see it"""
    weight_step_within_s: float = Field(30.0, gt=0)
    """longest step of a replacement of a node's full weights"""
    weight_sender_within_s: float = Field(180.0, gt=0)
    """longest start of the sending process, before the node is paused"""
    work_kept_s: int = Field(7 * 24 * 3600, ge=60)
    """how long ended work is remembered, against redelivery"""
    webhook_url: SecretStr | None = None
    """address that is told by POST, without redirects, that a release waits for a person"""
