"""Starts an agent, and takes all of its processes along when it ends.

`python -I -S -c BOOT FD`, where FD is a socket to the host:

    -> "listening", with the socket that listens on loopback: of this network, wherever it is
    <- a line of JSON: {argv, environment, folder, memory_mb, processes}
    -> {code, signal}, {over} or {fault}, when nothing that it started is left
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
from typing import Any, NamedTuple, NoReturn

from reefkit.jail import kernel

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.05
_COUNT_EVERY_S = 0.1
_COUNT_SHARE = 0.02  # of a core at most: without a namespace all processes of the machine are read
_THREADS = 16  # of a process, on the average
_KILL_WITHIN_S = 10.0
_FILE_BYTES = 1024 * 1024 * 1024
_PAGE = resource.getpagesize()


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
    status, over = _wait(agent, control, job)
    _kill_descendants()
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    said: dict[str, Any] = {"code": code if code >= 0 else None, "signal": max(-code, 0)}
    with contextlib.suppress(OSError):
        said = {"fault": fault} if fault else {"over": over} if over else said
        control.sendall(json.dumps(said).encode())


def _become_agent(job: dict[str, Any], faults: int) -> NoReturn:
    try:
        kernel.die_with_parent()
        os.setsid()  # so that nothing of it shares the launcher's group
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(faults, 3)
        os.set_inheritable(3, False)
        os.closerange(4, 256)
        faults = 3
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")  # if memory is short, the agent ends, and no service
        os.chdir(job["folder"])
        kernel.step_back()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        # The kernel counts threads, of all processes of this user, and none of root.
        threads = sum(one.threads for one in _processes().values() if one.user == os.getuid())
        with contextlib.suppress(ValueError, OSError):  # above the hard limit
            most = threads + job["processes"] * _THREADS
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execve(job["argv"][0], job["argv"], job["environment"])
    except BaseException as error:  # noqa: BLE001  # told to the host
        os.write(faults, f"{type(error).__name__}: {error}".encode())
    os._exit(126)


def _wait(agent: int, control: socket.socket, job: dict[str, Any]) -> tuple[int | None, str]:
    """Return the agent's status, and the bound that it has met.

    The status is None if it met one, or if the host is gone or wants an end.
    """
    due = time.monotonic() + _COUNT_EVERY_S
    while True:
        # Those that it has left behind are reaped on the way.
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == agent:
            return status, ""
        if not ended and select.select([control], [], [], _LOOK_EVERY_S)[0]:
            return None, ""
        if (began := time.monotonic()) >= due:
            if over := _over(job):
                return None, over
            ended_at = time.monotonic()
            due = ended_at + max(_COUNT_EVERY_S, (ended_at - began) / _COUNT_SHARE)


def _over(job: dict[str, Any]) -> str:
    """Return the bound that the agent and its processes pass together."""
    found = _processes()
    own = [found[number] for number in _descendants(found)]
    if len(own) > job["processes"]:
        return "processes"
    # A page that several of them share counts for each.
    return "memory" if sum(one.memory_bytes for one in own) > job["memory_mb"] << 20 else ""


def _kill_descendants() -> None:
    end = time.monotonic() + _KILL_WITHIN_S
    while time.monotonic() < end:
        # A whole group at once: a bomb starts more while single ones are being ended.
        found = _processes()
        groups = {found[number].group for number in _descendants(found)}
        for group in groups - {os.getpgid(0)}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


class _Process(NamedTuple):
    parent: int
    group: int
    threads: int
    memory_bytes: int
    user: int


def _processes() -> dict[int, _Process]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stream:
                # The name of the program is in parentheses, and may hold any.
                fields = stream.read().rpartition(b")")[2].split()
                parent, group, threads, pages = (int(fields[place]) for place in (1, 2, 17, 21))
                user = os.fstat(stream.fileno()).st_uid
                found[int(name)] = _Process(parent, group, threads, pages * _PAGE, user)
    return found


def _descendants(processes: dict[int, _Process]) -> list[int]:
    children: dict[int, list[int]] = {}
    for number, process in processes.items():
        children.setdefault(process.parent, []).append(number)
    found, left = [], [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found
