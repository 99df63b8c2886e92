"""The gateway's settings:

`REEF_GATEWAY_…` in the environment, else the `gateway` section of `serve.yaml`.
"""

import os
from typing import Self

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.config import load
from reefcommon.config_sections import GatewaySection
from reefcommon.settings import OwnSettings, SystemSettings
from services.gateway.domain.rate import Limit

_PREFIX = "REEF_GATEWAY_"


class Settings(GatewaySection, OwnSettings):
    """The keys of `serve.yaml`, and those that only the environment has. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)
    others = ("URL",)  # `SystemSettings` says how others reach the gateway

    keep_alive_s: int = Field(75, ge=1)
    """how long a connection may be idle; clients should give theirs up sooner"""
    max_answer_bytes: int = Field(256 * 1024 * 1024, ge=1024)
    """a serving node's answer; past it, it is cut off"""
    memory_budget_bytes: int = Field(512 * 1024 * 1024, ge=1024)
    """memory of requests under way: each holds its body twice; past it 503"""
    ack_timeout_s: float = Field(2.0, gt=0)
    """longest wait for the broker; then the event goes to the spool"""
    spool_budget_bytes: int = Field(1024**3, ge=64 * 1024)
    """disk for events while the broker is away; past 7/8 of it 503"""
    spool_ready_bytes: int = Field(512 * 1024**2, ge=0)
    """spool size past which /readyz fails"""
    spool_ready_age_s: float = Field(600.0, gt=0)
    """age of the spool's oldest event past which /readyz fails"""
    connect_timeout_s: float = Field(2.0, gt=0, description="longest wait to connect to a node")
    read_timeout_s: float = Field(600.0, gt=0)
    """longest silence of a serving node"""
    command_timeout_s: float = Field(30.0, gt=0, description="longest wait for a command; then 504")
    key_ttl_s: int = Field(24 * 3600, ge=60)
    """how long an idempotency key is kept"""
    key_lease_s: float = Field(30.0, gt=0)
    """how long a key stays taken after its gateway died"""
    snapshot_s: float = Field(10.0, gt=0)
    """how often the heads are read, besides following the log"""
    drain_s: int = Field(15, ge=1)
    """how long exchanges may go on after SIGTERM"""

    @property
    def limit(self) -> Limit:
        """The limits of a token that states none of its own."""
        return Limit(self.requests_per_s, self.burst_requests, self.concurrent_requests)

    @classmethod
    def read(cls, system: SystemSettings) -> Self:
        """Read the environment and the file that `system` names.

        Raises:
            BadConfig: a value is not allowed, or a variable with the gateway's prefix is unknown.
        """
        section = load(system.config).gateway.model_dump() if system.config is not None else {}
        stated = {name.upper() for name in os.environ}
        # what is given here wins over the environment: only its gaps are filled
        return cls.load(**{k: v for k, v in section.items() if _PREFIX + k.upper() not in stated})
