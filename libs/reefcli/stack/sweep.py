"""What a killed run left behind: found by the mark in each process's environment, never by a name or by a bare pid."""

import contextlib
import os
import time

import psutil

from reefcli.stack.process import STACK_VARIABLE


def remains(stack_id: str) -> list[psutil.Process]:
    """Living processes, other than this one, that some run on the same state directory has started."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            mark = process.environ().get(STACK_VARIABLE, "")
            if mark.partition(":")[0] == stack_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def sweep(stack_id: str, grace_s: float = 10.0) -> list[str]:
    """End them: SIGTERM, `grace_s` seconds, SIGKILL. Call it only while holding the state directory's lock.

    psutil checks the start time of a process before it sends a signal, so a pid that was used again is safe. Returns what was ended.
    """
    found = remains(stack_id)
    names = [_describe(process) for process in found]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5.0)
    deadline = time.monotonic() + 5.0
    while remains(stack_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    return names


def _describe(process: psutil.Process) -> str:
    try:
        mark = process.environ().get(STACK_VARIABLE, "")
    except (psutil.Error, OSError):
        mark = ""
    return f"{mark.partition(':')[2] or 'process'} (pid {process.pid})"
