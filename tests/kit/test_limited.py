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
