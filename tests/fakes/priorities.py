"""The priorities of the processes that a test has started, while they run."""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import psutil

T = TypeVar("T")


async def policies_during(running: Coroutine[Any, Any, T]) -> tuple[T, set[int], set[int]]:
    """Return what `running` does, and the policies seen of launchers and of their programs."""
    task = asyncio.create_task(running)
    launchers: set[int] = set()
    programs: set[int] = set()
    while not task.done():
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if command := str(process.cmdline() or ""):  # else it is about to start
                    seen = launchers if "reefkit.jail" in command else programs
                    seen.add(os.sched_getscheduler(process.pid))
        await asyncio.sleep(0.02)
    return await task, launchers, programs


def may_run_ahead() -> bool:
    """Return whether this user may run a process ahead of all others."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, *before)
    return True
