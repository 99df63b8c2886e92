"""The settings that all services share, read from `REEF_*` environment variables."""

import difflib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from reefcommon.errors import BadConfig
from reefcommon.meanings import meaning

_DISCOVERED = re.compile(r"REEF_\w+_(SERVICE_(HOST|PORT)|PORT_\d+_|PORT=(tcp|udp|sctp)://)")
_SERVICES = ("gateway", "experience", "trainer", "harness", "evaluator", "publisher")


class EnvironmentSettings(BaseSettings):
    """Given directly, unknown keys are refused; in the environment they are ignored."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Read the settings from the environment. Raises BadConfig."""
        _forget_discovered()
        try:
            return cls(**overrides)  # type: ignore[arg-type]
        except ValidationError as error:
            raise BadConfig(explain(error, prefix=prefix_of(cls))) from None


def _forget_discovered() -> None:
    # Kubernetes tells each container the services of its namespace: one that is called
    # `reef-gateway` makes REEF_GATEWAY_PORT=tcp://10.0.0.11:8900 and seven more.
    for name in [name for name in os.environ if _DISCOVERED.match(f"{name}={os.environ[name]}")]:
        del os.environ[name]


def prefix_of(settings: type[BaseSettings]) -> str:
    return str(settings.model_config.get("env_prefix", ""))


class SystemSettings(EnvironmentSettings):
    """The addresses of a deployment's systems."""

    model_config = SettingsConfigDict(env_prefix="REEF_")

    config: Path | None = Field(None, description="the serve.yaml of this deployment")
    state_dir: Path = Field(Path(".reef"), description="the embedded stack's own directory")
    bind_host: str = Field("127.0.0.1", description="address of the services' own HTTP endpoints")

    kafka_bootstrap: str = Field("127.0.0.1:9092", description="host:port[,host:port…]")
    kafka_idempotence: bool = False
    """idempotent producer: on for Apache Kafka, off for the embedded broker"""
    kafka_session_timeout_ms: int = Field(6_000, ge=500)
    """a consumer that is silent for this long loses its partitions; heartbeats come three times as
    often"""
    kafka_answer_s: float = Field(30.0, gt=0)
    """a broker that has not said for so long what a group has committed is away; until then it is
    slow"""
    redis_url: str = Field("redis://127.0.0.1:6379/0", description="heads: Redis 7+ or Valkey")
    clickhouse_url: str = ""
    """http://user:password@host:8123/database; empty: embedded chDB under state_dir"""
    artifacts_url: str = ""
    """lakefs://key:secret@host:port/repository; empty: git + LFS under state_dir"""
    engine_urls: str = Field("http://127.0.0.1:8901", description="serving nodes, comma-separated")
    engine_api_key: str = Field("", repr=False)
    """bearer token that the serving nodes ask for, if any"""
    dead_letters_limit: int = Field(100, ge=1)
    """dead letters that a consumer may make within the window, whatever their share"""
    dead_letters_share: float = Field(0.1, ge=0, le=1)
    """past the limit, the share of all its events at which it stops and waits for a person"""
    dead_letters_window_s: float = Field(300.0, gt=0, description="the window of both")

    otlp_endpoint: str = Field("", description="http://collector:4318; empty: no traces")

    gateway_url: str = Field("http://127.0.0.1:8900", description="where others reach the gateway")
    experience_url: str = "http://127.0.0.1:8911"
    """reads of records, sessions and samples"""
    trainer_url: str = Field("http://127.0.0.1:8912", description="operations of the trainer")
    harness_url: str = "http://127.0.0.1:8913"
    """operations of the harness service"""
    evaluator_url: str = Field("http://127.0.0.1:8914", description="operations of the evaluator")
    publisher_url: str = Field("http://127.0.0.1:8915", description="operations of the publisher")

    model_path: Path | None = None
    """base model as a Hugging Face directory: served by the engine, trained by the trainer"""
    model_name: str = Field("reef", description="name under which the engines serve the base model")

    @field_validator("engine_urls", *(f"{name}_url" for name in _SERVICES))
    @classmethod
    def _name_servers(cls, value: str) -> str:
        for url in filter(str.strip, value.split(",")):
            with suppress(ValueError):  # of the port
                parts = urlsplit(url.strip())
                if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                    continue
            raise PydanticCustomError("url", "must be of the form http://host:port")
        return value

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the base URLs of the serving nodes, without trailing slashes."""
        return tuple(url.strip().rstrip("/") for url in self.engine_urls.split(",") if url.strip())

    def port_of(self, service: str) -> int:
        """Return the port of a service's URL; the default URL's if it names none."""
        name = f"{service}_url"
        urls = (getattr(self, name), type(self).model_fields[name].default)
        return int(next(filter(None, [urlsplit(str(url)).port for url in urls])))


class OwnSettings(EnvironmentSettings):
    """Settings under the prefix of a subclass's `model_config`."""

    others: ClassVar[tuple[str, ...]] = ()
    """Names under this prefix that another settings class reads."""

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Read the settings from the environment. Raises BadConfig, also for an unknown name."""
        _forget_discovered()
        prefix = prefix_of(cls)
        known = {prefix + name.upper() for name in (*cls.model_fields, *cls.others)}
        if unknown := sorted({name for name in os.environ if name.startswith(prefix)} - known):
            allowed = f"allowed: {', '.join(sorted(known))}"
            raise BadConfig(f"unknown settings: {', '.join(unknown)}; {allowed}")
        return super().load(**overrides)


class ServiceSettings(OwnSettings):
    others = ("URL",)  # read by `SystemSettings`

    port: int | None = Field(None, ge=1, le=65535)
    """own HTTP port; absent: that of the URL under which others reach the service"""
    drain_s: int = Field(15, ge=1, description="deadline for a clean stop")


class HostSettings(ServiceSettings):
    settled_kept_s: float = Field(30 * 24 * 3600, gt=0)
    """how long settled samples and jobs are remembered one by one"""
    rejected_kept_s: float = Field(7 * 24 * 3600, gt=0)
    """how long the content of a rejected candidate stays in the artifact store"""
    retention_every_s: float = Field(600.0, gt=0)
    """time between two removals of old samples, jobs and contents"""
    first_delay_s: float = Field(0.25, gt=0)
    """wait before a step that failed is tried again; doubled each time"""
    max_delay_s: float = Field(5.0, gt=0, description="longest wait between two tries")
    max_attempts: int = Field(5, ge=1, description="tries of a step; then its samples are refused")
    signals_at_once: int = Field(8, ge=1, le=1024)
    """units of a recipe whose signal is computed at the same time"""
    signal_timeout_s: float = Field(600.0, gt=0, description="longest time of a recipe's signal")
    seek_in_flight: int = Field(16, ge=1, le=1024)
    """questions of a seeking recipe under way at once"""
    seek_priority: int = Field(10, ge=0, le=100)
    """priority of these, and of a recipe's other questions to the served model: users have 0 and go
    first; 0 sends none"""
    decide_timeout_s: float = Field(60.0, gt=0, description="longest time of a recipe's decide")


def explain(
    error: ValidationError,
    *,
    prefix: str = "",
    model: type[BaseModel] | None = None,
    also: Sequence[str] = (),
) -> str:
    """Return a line for each mistake: the key, the value, and the allowed values.

    An unknown key is compared with the fields of `model`, and at the top level with `also`.
    """
    lines = []
    for item in error.errors(include_url=False):
        loc, kind = item["loc"], item["type"]
        said = item["msg"].replace("a valid tuple", "a list").replace(" after validation", "")
        key = prefix + ".".join(map(str, loc))
        section = _section(model, loc[:-1])
        fields = list(section.model_fields) if section is not None else []
        if kind == "extra_forbidden":
            lines.append(f"{key}: {_unknown(loc, fields, also)}")
            continue
        name = str(loc[-1]) if loc else ""
        description = meaning(section, name) if section is not None and name in fields else ""
        # A URL may hold a password.
        shown = "" if kind == "url" else f" (got {item.get('input')!r:.120})"
        if kind == "value_error":  # a check of ours: it names what it found
            said, shown = said.removeprefix("Value error, "), ""
        # pydantic's own words, unless its terms mean little to a person.
        if kind == "missing":
            said, shown = "required, but missing", f"; it is {description}" if description else ""
        elif kind == "string_pattern_mismatch" and description:
            said = f"must be of the form {description}"
        lines.append(f"{key}: {said}{shown}" if key else f"{said}{shown}")
    return "\n".join(lines)


def _unknown(loc: Sequence[int | str], fields: Sequence[str], also: Sequence[str]) -> str:
    # The caller lists the keys of the top level: it knows how they are called.
    nested, name = len(loc) > 1, str(loc[-1])
    close = difflib.get_close_matches(name, [*fields, *(() if nested else also)], n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    allowed = f" (allowed here: {', '.join(fields)})" if nested and fields else ""
    return f"unknown key {name!r}{meant}{allowed}"


def _section(model: type[BaseModel] | None, path: Sequence[int | str]) -> type[BaseModel] | None:
    named = False
    for part in path:
        if isinstance(part, int) or named:  # a row of a list, or an entry of a mapping, of sections
            named = False
            continue
        field = model.model_fields.get(part) if model is not None else None
        inner = field.annotation if field is not None else None
        named = get_origin(inner) is dict
        inner = get_args(inner)[-1] if named else inner
        inner = get_args(inner)[0] if get_origin(inner) is tuple else inner
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return model
