"""Settings of the object store: `REEF_OBJECTSTORE_*`."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import OwnSettings


class Settings(OwnSettings):
    """Where the log lies, who may use it, and how it is kept."""

    model_config = SettingsConfigDict(env_prefix="REEF_OBJECTSTORE_")

    directory: Path = Field(description="directory of the log; one process at a time")
    port: int = Field(ge=1, le=65535, description="port on 127.0.0.1")
    bucket: str = Field("tansu", description="name of the only bucket")
    access_key: str = Field(min_length=1, description="key id of the signatures")
    secret_key: SecretStr = Field(min_length=1, description="secret of the signatures")
    segment_mb: int = Field(16, ge=1, description="size of one file of the log")
    lazily: str = Field(
        "",
        description="patterns of paths, by commas: changes of these are answered before their sync",
    )
    lazily_within_s: float = Field(0.5, gt=0, description="longest time until that sync")
    skip_damage: bool = Field(
        False, description="start although bytes of the log are damaged, without their objects"
    )
