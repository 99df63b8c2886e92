"""What the embedded stack does for itself from time to time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

_FIRST_AFTER_S = 10.0
Job = Callable[[], Awaitable[object]]


async def keep_house(
    jobs: Mapping[str, Job], every_s: float, on_failure: Callable[[str], None]
) -> None:
    """All jobs, one after another, for ever. `on_failure` hears the first failure of several in a row; all else works on."""
    failed: set[str] = set()
    await asyncio.sleep(min(_FIRST_AFTER_S, every_s))
    while True:
        for name, job in jobs.items():
            try:
                await job()
                failed.discard(name)
            except Exception as error:
                if name not in failed:
                    on_failure(
                        f"{name}: failed, and is tried again ({' '.join(repr(error).split())[:200]})"
                    )
                failed.add(name)
        await asyncio.sleep(every_s)
