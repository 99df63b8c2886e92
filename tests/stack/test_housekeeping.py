"""What the embedded stack does for itself: a job that fails is heard of, and costs no other."""

import asyncio

from reefstack.housekeeping import keep_house


async def test_a_job_that_fails_in_any_way_does_not_end_the_others() -> None:
    """It is told once as long as it goes on failing, and again when it fails anew."""
    told: list[str] = []
    rounds: list[int] = []
    done = asyncio.Event()

    async def wrong() -> None:
        if len(rounds) != 3:
            raise KeyError("odd")

    async def right() -> None:
        rounds.append(len(told))
        if len(rounds) == 6:
            done.set()

    keeping = asyncio.ensure_future(
        keep_house({"wrong": wrong, "right": right}, 0.001, told.append)
    )
    async with asyncio.timeout(60):
        await done.wait()
    keeping.cancel()
    assert told == ["wrong: failed, and is tried again (KeyError('odd'))"] * 2
    assert rounds == [1, 1, 1, 1, 2, 2]
