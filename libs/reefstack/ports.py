"""The port of each listener: asked for, of the last run, usual, or free."""

import contextlib
import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import psutil

from reefstack.errors import CannotStart

DEFAULTS: Mapping[str, int] = {
    "gateway": 8900, "engine": 8901, "kafka": 8902, "redis": 8903,
    "s3_master": 8904, "s3_volume": 8905, "s3_filer": 8906, "s3": 8907,
    "experience": 8911, "trainer": 8912, "harness": 8913, "evaluator": 8914, "publisher": 8915,
}  # fmt: skip
GRPC_OFFSET = 10_000  # SeaweedFS opens a gRPC port this far above each of its ports
SEAWEEDFS = ("s3_master", "s3_volume", "s3_filer", "s3")
# Below the range from which Linux takes ports for outgoing connections (32768 and up), gRPC ports
# included: no connection can take a port between our check and the program's bind.
_FREE_RANGE = (11_000, 22_000)


def is_free(port: int) -> bool:
    """Whether a program could listen on `port` now, on loopback and on all addresses."""
    for address in ("127.0.0.1", "0.0.0.0"):  # noqa: S104 - it asks, and serves nobody
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((address, port))
            except OSError:
                return False
    return True


def only_free_ones() -> bool:
    """Whether `$REEF_FREE_PORTS` asks for free ports only, as for a second stack."""
    return os.environ.get("REEF_FREE_PORTS", "").lower() in ("1", "true", "yes")


def moved(
    chosen: Mapping[str, int],
    *,
    holder: Callable[[int], str] | None = None,
    free: Callable[[int], bool] = is_free,
) -> str:
    """A note if the gateway is not on its usual port, as that is taken; else ""."""
    usual, port = DEFAULTS["gateway"], chosen.get("gateway", DEFAULTS["gateway"])
    if port == usual or free(usual):
        return ""
    return f"{usual} is taken by {(holder or holder_of)(usual) or 'another program'}: using {port}"


def needed(name: str, port: int) -> tuple[int, ...]:
    """The ports that the listener `name` opens if it is told `port`."""
    return (port, port + GRPC_OFFSET) if name in SEAWEEDFS else (port,)


def choose(
    names: Iterable[str],
    *,
    asked: Mapping[str, int],
    last: Mapping[str, int],
    prefer_defaults: bool = True,
    free: Callable[[int], bool] = is_free,
    draw: Callable[[int, int], int] = random.randint,
) -> dict[str, int]:
    """A port for each name.

    Raises:
        CannotStart: a port that was asked for is taken; the message names the process, if known.
    """
    chosen: dict[str, int] = {}
    used: set[int] = set()

    def fits(name: str, port: int) -> bool:
        return all(p not in used and p <= 65535 and free(p) for p in needed(name, port))

    for name in names:
        if name in asked and not fits(name, asked[name]):
            raise CannotStart(taken(name, asked[name]))
        usual = (asked.get(name, 0), last.get(name, 0), DEFAULTS[name] if prefer_defaults else 0)
        drawn = (draw(*_FREE_RANGE) for _ in range(200))
        port = next((p for p in chain(usual, drawn) if p and fits(name, p)), 0)
        if not port:
            low, high = _FREE_RANGE
            raise CannotStart(f"no free port for {name} from {low} to {high}; stop a program there")
        chosen[name] = port
        used.update(needed(name, port))
    return chosen


def taken(name: str, port: int) -> str:
    """The message for a port that is taken."""
    holder = holder_of(port)
    by = f" by {holder}" if holder else ""
    remedy = "Stop that program, or ask for another port (gateway: --port or `gateway.port`)."
    return f"port {port}, wanted for {name}, is taken{by}. {remedy}"


def holder_of(port: int) -> str:
    """The process that listens on `port`, as `name (pid N)`; "" if it is not known."""
    for pid in filter(None, _listeners(port)):
        with contextlib.suppress(psutil.Error):
            return f"{psutil.Process(pid).name()} (pid {pid})"
    return ""


def held_by_stranger(port: int, group: int) -> bool:
    """Whether a process outside the process group listens on `port`. False if it cannot be seen."""
    for pid in _listeners(port):
        with contextlib.suppress(OSError):  # it has ended
            if not pid or os.getpgid(pid) != group:
                return True
    return False


def _listeners(port: int) -> list[int | None]:
    # None: a process of another user
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return []
    listening = (found for found in connections if found.status == psutil.CONN_LISTEN)
    return [found.pid for found in listening if found.laddr[1:2] == (port,)]
