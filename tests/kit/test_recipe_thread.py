"""The thread of a recipe: what blocks, hangs or exits there holds up this recipe alone."""

import asyncio
import gc
import sys
import threading
import time
import warnings

import pytest

from reefcommon.errors import Unavailable
from reefkit.recipes.thread import MAX_HANGING, Interrupted, RecipeThread, RecipeTimeout


@pytest.fixture
def thread():
    made = RecipeThread("tests:Recipe", blocked_limit_s=0.2)
    yield made
    made.stop()


async def answer(value):
    await asyncio.sleep(0)
    return value, threading.current_thread().name


async def spin():
    while True:
        pass


async def test_a_call_runs_on_the_thread_of_the_recipe(thread):
    value, name = await thread.call(answer, 7, timeout_s=5.0)
    assert (value, name) == (7, "tests:Recipe")
    assert await asyncio.gather(*(thread.call(answer, n, timeout_s=5.0) for n in range(50))) == [
        (n, "tests:Recipe") for n in range(50)
    ]


async def test_an_error_is_that_of_the_recipe(thread):
    async def fail():
        raise ZeroDivisionError("odd")

    with pytest.raises(ZeroDivisionError, match="odd"):
        await thread.call(fail, timeout_s=5.0)


async def test_a_coroutine_that_hangs_is_cancelled(thread):
    ended = threading.Event()

    async def hang():
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(RecipeTimeout, match=r"tests:Recipe: hang takes longer than 0\.05 s"):
        await thread.call(hang, timeout_s=0.05)
    assert await asyncio.to_thread(ended.wait, 5)
    assert await thread.call(answer, 1, timeout_s=5.0)


async def test_a_cancelled_caller_cancels_the_coroutine(thread):
    began, ended = threading.Event(), threading.Event()

    async def hang():
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    task = asyncio.create_task(thread.call(hang, timeout_s=None))
    await asyncio.to_thread(began.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 5)
    assert thread.facts()["running"] == []


@pytest.mark.parametrize("nested", [False, True])
async def test_an_endless_loop_is_ended_and_named(thread, nested):
    """Beside it another call waits: it is interrupted, and not at fault."""

    async def outer():
        await asyncio.gather(spin())

    async def patient():
        await asyncio.sleep(60)

    other = asyncio.create_task(thread.call(patient, timeout_s=None))
    await asyncio.sleep(0.1)
    with pytest.raises(RecipeTimeout, match="blocks its thread"):
        await thread.call(outer if nested else spin, timeout_s=30.0)
    with pytest.raises(Interrupted, match="another call blocks"):
        await other
    assert await thread.call(answer, 2, timeout_s=5.0)
    async with asyncio.timeout(5):
        while thread.facts()["abandoned"]:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("nested", [False, True])
async def test_sys_exit_ends_the_call_alone(thread, nested):
    async def leave():
        sys.exit(3)

    async def outer():
        await asyncio.gather(leave())

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await thread.call(outer if nested else leave, timeout_s=5.0)
    assert await thread.call(answer, 3, timeout_s=5.0)


async def test_the_host_goes_on_while_a_recipe_blocks(thread):
    async def block():
        time.sleep(1.0)
        return "done"

    thread.blocked_limit_s = 30.0
    task, turns = asyncio.create_task(thread.call(block, timeout_s=30.0)), 0
    while not task.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert await task == "done"
    assert turns > 20


async def test_the_number_of_blocked_threads_is_bounded(thread):
    let = threading.Event()

    async def block():
        let.wait(60)  # a call into C: it cannot be ended

    for _ in range(MAX_HANGING):
        with pytest.raises(RecipeTimeout):
            await thread.call(block, timeout_s=30.0)
    with pytest.raises(Unavailable, match="restart to go on"):
        await thread.call(answer, 1, timeout_s=5.0)
    assert thread.facts()["abandoned"] == MAX_HANGING
    let.set()
    async with asyncio.timeout(5):
        while thread.facts()["abandoned"]:
            await asyncio.sleep(0.05)
    assert await thread.call(answer, 1, timeout_s=5.0)


async def test_a_call_that_waits_behind_a_blocked_one_is_not_begun(thread):
    """The end of the thread runs what is queued there: no coroutine is made and then left."""

    async def patient():
        await asyncio.sleep(60)

    async def call_behind():
        await asyncio.sleep(0.3)
        return await thread.call(answer, 4, timeout_s=30.0)

    other = asyncio.create_task(thread.call(patient, timeout_s=None))
    behind = [asyncio.create_task(call_behind()) for _ in range(3)]
    await asyncio.sleep(0.1)
    with pytest.raises(RecipeTimeout, match="blocks its thread"):
        await thread.call(spin, timeout_s=30.0)
    for refused in await asyncio.gather(other, *behind, return_exceptions=True):
        assert isinstance(refused, Interrupted), refused
    async with asyncio.timeout(5):
        while thread.facts()["abandoned"]:
            await asyncio.sleep(0.05)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gc.collect()
    assert not seen
