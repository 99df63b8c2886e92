"""The parts of a plan: programs, how each starts, and when it is ready. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


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
class ConfigFile:
    """A file with this text, written before the program starts, readable by its owner only."""

    path: Path
    text: str = field(repr=False)


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
    files: tuple[ConfigFile, ...] = ()
    directories: tuple[Path, ...] = ()
    cwd: Path | None = None
    # if a program that is not vital dies too often after it was ready, the others go on
    vital: bool = True
    ready_within_s: float = 60.0
    stop_within_s: float = 15.0
