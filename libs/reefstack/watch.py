"""Waits for a child of the stack: until it is ready, until it hangs."""

import asyncio
from collections.abc import Callable

from reefstack.probes import lives, why_not_ready
from reefstack.process import Child
from reefstack.restart_policy import RestartPolicy, StackEvent
from reefstack.spec import ProcessSpec


async def until_ready(
    child: Child, within_s: float, policy: RestartPolicy, tell: Callable[[StackEvent], None]
) -> str:
    """Return "" when `child` is ready, else why it is not: it ended, or `within_s` is over."""
    spec, loop = child.spec, asyncio.get_running_loop()
    deadline, last = loop.time() + within_s, ""
    while not child.ended:
        reason = await why_not_ready(spec.probe)
        if not reason and not child.ended:
            return ""
        if reason != last:
            tell(StackEvent(spec.name, "waiting", reason))
            last = reason
        if loop.time() > deadline:
            return reason
        await asyncio.sleep(policy.probe_every_s)
    return "it ended"


async def until_hung(spec: ProcessSpec, ready: Callable[[], bool], policy: RestartPolicy) -> str:
    """Return when the program has given no sign of life for too long."""
    now = asyncio.get_running_loop().time
    since, answered, patience_s = now(), False, policy.hung_after_s
    while True:
        # before its first sign of life it has the time that a start may take
        limit_s = patience_s if answered or ready() else max(spec.ready_within_s, patience_s)
        if now() - since >= limit_s:
            return f"no sign of life for {limit_s:g} s"
        await asyncio.sleep(policy.alive_every_s)
        if await lives(spec.alive or spec.probe):
            since, answered = now(), True
