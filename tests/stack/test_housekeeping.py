"""The care of the log: a merge that fails is heard of, and tried again."""

import asyncio

from reefstack.housekeeping import keep_log
from reefstack.restart_policy import StackEvent


async def test_a_merge_that_fails_is_told_once_until_it_works() -> None:
    """It fails in rounds 1 to 3 and 5 to 6: told at the first and at the fifth."""
    told: list[StackEvent] = []
    rounds: list[int] = []
    done = asyncio.Event()

    async def merge() -> None:
        rounds.append(len(told))
        if len(rounds) == 7:
            done.set()
        elif len(rounds) != 4:
            raise KeyError("odd")

    keeping = asyncio.ensure_future(keep_log(merge, 0.001, told.append))
    async with asyncio.timeout(60):
        await done.wait()
    keeping.cancel()
    text = "merging small objects of the log: failed, and is tried again (KeyError('odd'))"
    assert told == [StackEvent("tansu", "note", text)] * 2
    assert rounds == [0, 1, 1, 1, 1, 2, 2]
