"""The settings of the experience service: `REEF_EXPERIENCE_*`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import ServiceSettings


class Settings(ServiceSettings):
    """Limits and pace of this service."""

    model_config = SettingsConfigDict(env_prefix="REEF_EXPERIENCE_")

    batch_records: int = Field(1000, ge=1, le=10_000)
    """most events handled, and rows inserted, at once"""
    batch_wait_ms: int = Field(500, ge=1, le=10_000)
    """longest wait for the first event of a batch"""
    batch_pause_ms: int = Field(100, ge=0, le=10_000)
    """pause after a small batch, in which the next one grows"""
    max_open_sessions: int = Field(20_000, ge=1)
    """open sessions kept in memory; the least recently used goes first"""
    session_ttl_s: float = Field(900.0, gt=0)
    """a session without a new turn for this long is closed"""
    session_idle_s: float = Field(900.0, gt=0)
    """a session without a new exchange for this long has ended, for recipes that want turns or
    sessions"""
    report_wait_s: float = Field(300.0, gt=0)
    """how long a report waits for a record that is not known yet"""
    max_parked: int = Field(50_000, ge=1)
    """waiting reports kept in memory; the others wait in the store alone"""
    sweep_every_s: float = Field(5.0, gt=0, description="pace of the looks at waiting reports")
    kept_days: int = Field(0, ge=0)
    """rows about traffic are removed so many days after their events; 0: never"""
