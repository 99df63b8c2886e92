"""Starts an agent, and takes all of its processes along when it ends.

`python -I -S -c BOOT FD`, where FD is a socket to the host:

    -> "listening", with the socket that listens on loopback: of this network, wherever it is
    <- a line of JSON: {argv, environment, folder}
    -> {code, signal} or {fault}, when nothing that it started is left
"""

# Every process that the agent leaves behind becomes a child of this one (a subreaper), so that none
# can step aside. The host's death closes the socket, and that ends the agent too.

import contextlib
import json
import os
import resource
import select
import signal
import socket
import time
from typing import Any, NoReturn

from reefkit.jail import kernel

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.05
_KILL_WITHIN_S = 10.0
_FILE_BYTES = 1024 * 1024 * 1024
_NICENESS = 10


def main(number: str) -> None:
    control = socket.socket(fileno=int(number))
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        socket.send_fds(control, [b"listening"], [listener.fileno()])
    with control.makefile("rb") as lines:
        line = lines.readline()
    if not line:
        return
    job = json.loads(line)
    reading, writing = os.pipe()
    agent = os.fork()
    if agent == 0:
        _become_agent(job, writing)
    os.close(writing)
    with os.fdopen(reading) as stream:  # closed by exec
        fault = stream.read()
    status = _wait(agent, control)
    _kill_descendants()
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    said: dict[str, Any] = {"code": code if code >= 0 else None, "signal": max(-code, 0)}
    with contextlib.suppress(OSError):
        control.sendall(json.dumps({"fault": fault} if fault else said).encode())


def _become_agent(job: dict[str, Any], faults: int) -> NoReturn:
    try:
        kernel.die_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(faults, 3)
        os.set_inheritable(3, False)
        os.closerange(4, 256)
        faults = 3
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")  # if memory is short, the agent ends, and no service
        os.chdir(job["folder"])
        os.nice(_NICENESS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execve(job["argv"][0], job["argv"], job["environment"])
    except BaseException as error:  # noqa: BLE001  # told to the host
        os.write(faults, f"{type(error).__name__}: {error}".encode())
    os._exit(126)


def _wait(agent: int, control: socket.socket) -> int | None:
    """Return the agent's status; None if the host is gone, or wants an end."""
    while True:
        # Those that it has left behind are reaped on the way.
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == agent:
            return status
        if not ended and select.select([control], [], [], _LOOK_EVERY_S)[0]:
            return None


def _kill_descendants() -> None:
    end = time.monotonic() + _KILL_WITHIN_S
    while time.monotonic() < end:
        for process in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stream:
                # The name of the program is in parentheses, and may hold any.
                parent = int(stream.read().rpartition(b")")[2].split()[1])
                parents.setdefault(parent, []).append(int(name))
    found, left = [], [os.getpid()]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found
