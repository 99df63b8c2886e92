"""The care of the embedded log, for the life of the stack."""

import asyncio
from collections.abc import Awaitable, Callable

from reefstack import tansu
from reefstack.restart_policy import StackEvent

_FIRST_AFTER_S = 10.0


async def keep_log(
    merge: Callable[[], Awaitable[None]], every_s: float, listener: Callable[[StackEvent], None]
) -> None:
    """Run `merge` for ever. `listener` hears the first of several failures in a row."""
    failed = False
    await asyncio.sleep(min(_FIRST_AFTER_S, every_s))
    while True:
        try:
            await merge()
            failed = False
        except Exception as error:  # noqa: BLE001 - care of the log must not end the stack
            if not failed:
                cause = " ".join(repr(error).split())[:200]
                text = f"merging small objects of the log: failed, and is tried again ({cause})"
                listener(StackEvent(tansu.NAME, "note", text))
            failed = True
        await asyncio.sleep(every_s)
