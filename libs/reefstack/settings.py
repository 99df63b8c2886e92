"""Settings of `reef serve`: `REEF_STACK_*`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import OwnSettings
from reefstack.merger.objects import Limits
from reefstack.restart_policy import RestartPolicy
from reefstack.spec import StoreKind


class Settings(OwnSettings):
    """Restarts of the programs, and care of the embedded log."""

    model_config = SettingsConfigDict(env_prefix="REEF_STACK_")

    hung_after_s: float = Field(60.0, gt=0)
    """a program without any sign of life for this long is killed and started again"""
    settled_s: float = Field(10.0, ge=0)
    """a death after having been ready for this long does not count as a quick one"""
    quick_deaths: int = Field(5, ge=1)
    """quick deaths in a row of the gateway, the engine, the broker or a store after which the stack
    gives up"""
    max_delay_s: float = Field(60.0, gt=0)
    """longest pause before a restart; the first one is at once"""

    object_store: StoreKind | None = None
    """store below the embedded broker; absent: the one that the state directory has already, else
    objectstore"""
    housekeeping_every_s: float = Field(60.0, ge=0)
    """pause between two rounds of care for the embedded log; 0: none"""
    merge_least: int = Field(64, ge=2)
    """objects of a partition that are worth a merge; a quarter as many stay small"""

    @property
    def limits(self) -> Limits:
        """The merger's limits."""
        return Limits(keep=max(self.merge_least // 4, 1), least=self.merge_least)

    @property
    def policy(self) -> RestartPolicy:
        """The supervisor's policy."""
        # several signs of life within the limit: one slow answer is no hang
        given = {"max_delay_s", "quick_deaths", "settled_s", "hung_after_s"}
        alive_every_s = min(10.0, self.hung_after_s / 5)
        return RestartPolicy(**self.model_dump(include=given), alive_every_s=alive_every_s)
