"""What a plan is made of: programs, how each is started, and how one sees that it is ready. Data only."""

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
    """Ready when PING is answered. A server that is still loading its append-only file refuses it."""

    url: str


@dataclass(frozen=True, slots=True)
class S3Writable:
    """Ready when an object can be written to `bucket`: an open port says little about a store that is still electing its master."""

    url: str
    bucket: str
    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TcpOpen:
    """Ready when something accepts a connection."""

    host: str
    port: int


Probe = HttpReady | KafkaAnswers | RedisAnswers | S3Writable | TcpOpen


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that must be there, with this text, before the program starts. Readable by its owner only."""

    path: Path
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One program of the stack.

    `env` is added to the environment of whoever starts it; `ports` are those that it listens on, and `depends_on` names the
    programs (and `topics`, the step that creates them) that must be ready before it starts; it ends before those, and before
    the ones in `ends_before`, which it can do without for a while. When it has died it starts again at once, whatever else is away,
    but for `restarts_after`: programs without which it would only die again. `probe` says that it is ready; `alive` (absent: `probe`)
    is what a program that does not hang answers to, with whatever it says. Where one that is not `vital` dies too often after it had been
    ready, the others go on without it.
    """

    name: str
    argv: tuple[str, ...]
    probe: Probe
    log: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    alive: Probe | None = None
    depends_on: tuple[str, ...] = ()
    restarts_after: tuple[str, ...] = ()
    ends_before: tuple[str, ...] = ()
    url: str = ""
    ports: tuple[int, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    directories: tuple[Path, ...] = ()
    cwd: Path | None = None
    vital: bool = True
    ready_within_s: float = 60.0
    stop_within_s: float = 15.0
