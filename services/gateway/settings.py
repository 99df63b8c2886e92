"""The gateway's own settings: `REEF_GATEWAY_…` in the environment, else the `gateway` section of the `serve.yaml` in `REEF_CONFIG`."""

from pathlib import Path
from typing import Self

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from reefcommon.config import load
from reefcommon.settings import OwnSettings, SystemSettings
from services.gateway.domain.rate import Limit


class Settings(OwnSettings):
    """Units are in the names. The environment wins over the file."""

    model_config = SettingsConfigDict(env_prefix="REEF_GATEWAY_")
    others = ("URL",)  # `SystemSettings` says how others reach the gateway

    host: str = "127.0.0.1"
    port: int = Field(8900, ge=0, le=65535)
    tokens_file: Path | None = None
    implicit_scenarios: bool = False
    max_body_bytes: int = Field(32 * 1024 * 1024, ge=1024)

    max_header_bytes: int = Field(
        32 * 1024,
        ge=4096,
        le=1024 * 1024,
        description="names and values of a request's headers; its target alike; past it 431, 414",
    )
    max_headers: int = Field(100, ge=16, description="headers of a request; past it 431")
    head_timeout_s: float = Field(
        20.0,
        gt=0,
        description="how long a request's head, or the first byte of a connection, may take",
    )
    keep_alive_s: int = Field(
        75,
        ge=1,
        description="how long a connection may be idle; clients should give theirs up sooner, or one is closed just as it is used",
    )
    body_timeout_s: float = Field(
        60.0,
        gt=0,
        description="longest silence in the middle of a request's body, which may take ten of them; then 408",
    )
    requests_per_s: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="requests that a token may begin each second; 0: no limit",
    )
    burst_requests: int = Field(
        0, ge=0, description="how many of them at once; 0: two seconds' worth"
    )
    concurrent_requests: int = Field(
        0, ge=0, description="exchanges of one token under way on this gateway; 0: no limit"
    )
    max_answer_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="a serving node's answer; one that goes on past it is cut off",
    )
    memory_budget_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024,
        description="memory of requests under way: each holds its body twice; past it new ones get 503",
    )
    ack_timeout_s: float = Field(
        2.0,
        gt=0,
        description="longest wait for the broker's acknowledgement; then the event goes to the spool",
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
        600.0, gt=0, description="age of the oldest event in the spool past which /readyz fails"
    )
    linger_ms: int = Field(
        0, ge=0, description="how long an event waits for others to be sent with it"
    )
    connect_timeout_s: float = Field(2.0, gt=0)
    read_timeout_s: float = Field(600.0, gt=0, description="longest silence of a serving node")
    command_timeout_s: float = Field(30.0, gt=0)
    key_ttl_s: int = Field(
        24 * 3600, ge=60, description="how long an idempotency key is remembered"
    )
    key_lease_s: float = Field(
        30.0, gt=0, description="how long a key stays taken after its gateway died"
    )
    snapshot_s: float = Field(
        10.0, gt=0, description="how often the heads are read anew, besides following the log"
    )
    drain_s: int = Field(15, ge=1, description="how long exchanges may go on after SIGTERM")

    @property
    def limit(self) -> Limit:
        """What a token may do that states no limits of its own."""
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
        """Environment first, then what was given."""
        return env_settings, init_settings

    @classmethod
    def read(cls, system: SystemSettings) -> Self:
        """From the environment and the file that `system` names.

        Raises:
            BadConfig: a value is not allowed, or a variable with the gateway's prefix is unknown.
        """
        section = load(system.config).gateway.model_dump() if system.config is not None else {}
        return cls.load(**section)
