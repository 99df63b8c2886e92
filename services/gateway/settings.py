"""The gateway's settings:

`REEF_GATEWAY_…` in the environment, else the `gateway` section of `serve.yaml`.
"""

from typing import Self

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from reefcommon.config import load
from reefcommon.config_sections import GatewaySection
from reefcommon.settings import OwnSettings, SystemSettings
from services.gateway.domain.rate import Limit


class Settings(GatewaySection, OwnSettings):
    """The keys of `serve.yaml`, and those that only the environment has. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="REEF_GATEWAY_", extra="forbid", frozen=True)
    others = ("URL",)  # `SystemSettings` says how others reach the gateway

    keep_alive_s: int = Field(
        75,
        ge=1,
        description="how long a connection may be idle; clients should give theirs up sooner",
    )
    max_answer_bytes: int = Field(
        256 * 1024 * 1024, ge=1024, description="a serving node's answer; past it, it is cut off"
    )
    memory_budget_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024,
        description="memory of requests under way: each holds its body twice; past it 503",
    )
    ack_timeout_s: float = Field(
        2.0, gt=0, description="longest wait for the broker; then the event goes to the spool"
    )
    spool_budget_bytes: int = Field(
        1024**3,
        ge=64 * 1024,
        description="disk for events while the broker is away; past 7/8 of it 503",
    )
    spool_ready_bytes: int = Field(
        512 * 1024**2, ge=0, description="spool size past which /readyz fails"
    )
    spool_ready_age_s: float = Field(
        600.0, gt=0, description="age of the spool's oldest event past which /readyz fails"
    )
    linger_ms: int = Field(0, ge=0, description="how long an event waits to be sent with others")
    connect_timeout_s: float = Field(2.0, gt=0)
    read_timeout_s: float = Field(600.0, gt=0, description="longest silence of a serving node")
    command_timeout_s: float = Field(30.0, gt=0)
    key_ttl_s: int = Field(24 * 3600, ge=60, description="how long an idempotency key is kept")
    key_lease_s: float = Field(
        30.0, gt=0, description="how long a key stays taken after its gateway died"
    )
    snapshot_s: float = Field(
        10.0, gt=0, description="how often the heads are read, besides following the log"
    )
    drain_s: int = Field(15, ge=1, description="how long exchanges may go on after SIGTERM")

    @property
    def limit(self) -> Limit:
        """The limits of a token that states none of its own."""
        return Limit(self.requests_per_s, self.burst_requests, self.concurrent_requests)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file."""
        return env_settings, init_settings

    @classmethod
    def read(cls, system: SystemSettings) -> Self:
        """Read the environment and the file that `system` names.

        Raises:
            BadConfig: a value is not allowed, or a variable with the gateway's prefix is unknown.
        """
        section = load(system.config).gateway.model_dump() if system.config is not None else {}
        return cls.load(**section)
