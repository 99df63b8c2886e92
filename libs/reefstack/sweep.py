"""Ends the processes that a killed run left behind."""

import contextlib
import os
import time
from collections.abc import Iterable

import psutil

from reefstack.process import STACK_VARIABLE
from reefstack.state import ProcessRecord, same_process


def remains(stack_id: str, recorded: Iterable[ProcessRecord] = ()) -> list[psutil.Process]:
    """Living processes, other than this one, that an earlier run on this directory started."""
    found = []
    # by a mark in the environment; those that hide it, by pid and start time together
    known = {record.pid: record.created for record in recorded}
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            ours = _mark(process).partition(":")[0] == stack_id or same_process(
                process.pid, known.get(process.pid, -1.0)
            )
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def sweep(
    stack_id: str, recorded: Iterable[ProcessRecord] = (), *, grace_s: float = 10.0
) -> list[str]:
    """End them: SIGTERM, `grace_s` seconds, SIGKILL. Return their names."""
    recorded = tuple(recorded)
    found = remains(stack_id, recorded)
    names = [_describe(process) for process in found]
    for process in found:  # psutil checks the start time, so a reused pid is safe
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5.0)
    deadline = time.monotonic() + 5.0
    while remains(stack_id, recorded) and time.monotonic() < deadline:
        time.sleep(0.05)
    return names


def _describe(process: psutil.Process) -> str:
    return f"{_mark(process).partition(':')[2] or 'process'} (pid {process.pid})"


def _mark(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(STACK_VARIABLE, ""))
    except (psutil.Error, OSError):
        return ""
