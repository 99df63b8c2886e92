"""The parts of a plan: programs, how each starts, and when it is ready. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reefstack.state import Secrets

StoreKind = Literal["objectstore", "seaweedfs"]


@dataclass(frozen=True, slots=True)
class Site:
    """The place of a plan. `ports` by listener, `binaries` by program."""

    state_dir: Path
    ports: Mapping[str, int]
    binaries: Mapping[str, str]
    secrets: Secrets
    config_path: Path | None = None
    model_path: Path | None = None
    store: StoreKind | None = "objectstore"  # None: the log is in memory

    def log(self, name: str) -> Path:
        """The log file of a program."""
        return self.state_dir / "logs" / f"{name}.log"

    def url(self, listener: str) -> str:
        """The URL of a listener of HTTP, "" if it is not here."""
        return f"http://127.0.0.1:{self.ports[listener]}" if listener in self.ports else ""

    def s3(self, bucket: str) -> "S3Writable":
        """The bucket of the store below the broker."""
        secrets = self.secrets
        return S3Writable(self.url("s3"), bucket, secrets.s3_access_key, secrets.s3_secret_key)


@dataclass(frozen=True, slots=True)
class HttpReady:
    """Ready when GET `url` answers 200."""

    url: str


@dataclass(frozen=True, slots=True)
class KafkaAnswers:
    """Ready when a Kafka client gets the list of topics from `bootstrap` (host:port)."""

    bootstrap: str


@dataclass(frozen=True, slots=True)
class RedisAnswers:
    """Ready when PING is answered. A server that still loads its file refuses it."""

    url: str


@dataclass(frozen=True, slots=True)
class S3Writable:
    """Ready when an object can be written to `bucket`."""

    url: str
    bucket: str
    access_key: str
    secret_key: str = field(repr=False)


Probe = HttpReady | KafkaAnswers | RedisAnswers | S3Writable


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A program of the stack. `env` is added to the supervisor's environment."""

    name: str
    argv: tuple[str, ...]
    probe: Probe
    log: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    alive: Probe | None = None  # asked for signs of life; None: `probe`
    # programs, and the step `topics`, that must be ready before the first start, and end later
    depends_on: tuple[str, ...] = ()
    # a restart waits for these alone: without them the program would only die again
    restarts_after: tuple[str, ...] = ()
    ends_before: tuple[str, ...] = ()
    url: str = ""
    ports: tuple[int, ...] = ()
    # texts, written before it starts, readable by their owner only
    files: Mapping[Path, str] = field(default_factory=dict, repr=False)
    directories: tuple[Path, ...] = ()
    cwd: Path | None = None
    # if a program that is not vital dies too often after it was ready, the others go on
    vital: bool = True
    # added to the supervisor's nice value: programs that no user waits for give way
    niceness: int = 0
    ready_within_s: float = 60.0
    stop_within_s: float = 15.0
