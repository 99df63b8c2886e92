"""Several jobs side by side: their order, their number, and the end of the others."""

import asyncio
from functools import partial

import pytest

from reefkit.limited import limited


class Jobs:
    def __init__(self) -> None:
        self.running = self.most = self.cancelled = 0
        self.ended: list[int] = []

    async def job(self, number: int, fails: int = -1) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.01 * (number % 3))
            if number == fails:
                raise ValueError(number)
            await asyncio.sleep(0.01)
            self.ended.append(number)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return number


async def test_results_keep_their_order_within_the_limit() -> None:
    jobs = Jobs()
    assert await limited(3, [partial(jobs.job, i) for i in range(10)]) == list(range(10))
    assert jobs.most == 3
    assert await limited(3, []) == []
    assert await limited(3, [], finish=True) == []


@pytest.mark.parametrize("finish", [True, False])
async def test_a_failure_ends_the_others(*, finish: bool) -> None:
    jobs = Jobs()
    with pytest.raises(ValueError, match="0"):
        await limited(3, [partial(jobs.job, i, 0) for i in range(10)], finish=finish)
    await asyncio.sleep(0.05)
    assert jobs.running == 0
    assert (sorted(jobs.ended), jobs.cancelled) == (([1, 2], 0) if finish else ([], 2))


@pytest.mark.parametrize("fails", [False, True])
async def test_no_job_goes_on_after_the_end(fails: bool) -> None:
    """Those that wait end at once, and those under way after their cleaning up."""
    left = 0

    async def job() -> None:
        nonlocal left
        left += 1
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            left -= 1

    async def bad() -> None:
        await asyncio.sleep(0.02)
        raise ValueError("bad")

    jobs = [*(job for _ in range(3)), *([bad] if fails else []), *(job for _ in range(9))]
    running = asyncio.create_task(limited(4, jobs))
    await asyncio.sleep(0.01)
    assert left >= 3
    if not fails:
        running.cancel()
    with pytest.raises(ValueError if fails else asyncio.CancelledError):
        await running
    assert left == 0
