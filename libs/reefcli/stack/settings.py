"""What the supervisor of the embedded stack can be told: `REEF_STACK_*`."""

from typing import Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from reefcli.stack.supervisor import RestartPolicy
from reefcommon.errors import BadConfig
from reefcommon.settings import explain, unknown_variables

PREFIX = "REEF_STACK_"


class Settings(BaseSettings):
    """When a program of `reef serve` is given up, and how fast it is started again."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    hung_after_s: float = Field(60.0, gt=0, description="a program without any sign of life for this long is killed and started again")
    settled_s: float = Field(10.0, ge=0, description="a death after having been ready for this long does not count as a quick one")
    quick_deaths: int = Field(5, ge=1, description="quick deaths in a row after which the stack gives up")
    max_delay_s: float = Field(10.0, gt=0, description="longest pause before a restart; the first one is at once")

    @property
    def policy(self) -> RestartPolicy:
        """As the supervisor takes it. Signs of life are looked for often enough to tell a hang from one slow answer."""
        return RestartPolicy(
            max_delay_s=self.max_delay_s,
            deaths=self.quick_deaths,
            settled_s=self.settled_s,
            hung_after_s=self.hung_after_s,
            alive_every_s=min(2.0, self.hung_after_s / 5),
        )

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Read the settings from the environment.

        Raises:
            BadConfig: a value is not allowed, or a variable with this prefix is unknown.
        """
        known = {PREFIX + name.upper() for name in cls.model_fields}
        if unknown := unknown_variables(known, PREFIX):
            raise BadConfig(f"unknown settings: {', '.join(unknown)}; allowed: {', '.join(sorted(known))}")
        try:
            return cls(**overrides)  # type: ignore[arg-type]
        except ValidationError as error:
            raise BadConfig(explain(error, prefix=PREFIX)) from None
