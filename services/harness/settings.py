"""The settings of the harness service: `REEF_HARNESS_*`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import HostSettings


class Settings(HostSettings):
    """Limits and pace of this service. Outside systems: `reefcommon.settings.SystemSettings`."""

    model_config = SettingsConfigDict(env_prefix="REEF_HARNESS_")

    max_attempts: int = Field(6, ge=1)
    """tries of a proposal that takes too long; then its samples are refused"""
    propose_timeout_s: float = Field(600.0, gt=0)
    """longest time that a recipe's propose may take"""
    step_calls: int = Field(0, ge=0)
    """questions to models that a recipe's propose may ask in a step; then the step ends without a
    candidate; 0: no limit"""
    max_waiting_proposals: int = Field(8, ge=1, le=1000)
    """proposals of people and agents that may wait in a scenario; more are refused"""
