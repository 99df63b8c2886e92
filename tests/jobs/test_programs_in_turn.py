"""Programs of several recipes in one sandbox: a flood of one holds up no other for long."""

import asyncio

from reefcommon.recipe_context import Outcome
from reefkit.recipes.runtime import OwnPrograms


class Queue:
    """A sandbox that runs one program after another, in the order of their arrival."""

    def __init__(self):
        self.ran, self.one = [], asyncio.Lock()

    async def run(self, program, **_options):
        async with self.one:
            await asyncio.sleep(0)
            self.ran.append(program)
            if program == "bad":
                raise ValueError("no program")
            return Outcome("ok", 0, program)

    def describe(self):
        return "queue"


async def test_another_recipe_gets_its_turn():
    queue = Queue()
    flood, other = OwnPrograms(queue, at_once=2), OwnPrograms(queue, at_once=2)
    many = [asyncio.create_task(flood.run(f"flood {number}")) for number in range(50)]
    await asyncio.sleep(0)
    assert (await other.run("other")).stdout == "other"
    assert len(queue.ran) <= 5
    found = await asyncio.gather(*many)
    assert [outcome.stdout for outcome in found] == [f"flood {number}" for number in range(50)]


async def test_a_failed_or_cancelled_program_leaves_its_place():
    queue = Queue()
    own = OwnPrograms(queue, at_once=1)
    failed = await asyncio.gather(*(own.run("bad") for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in failed] == ["no program"] * 3
    tasks = [asyncio.create_task(own.run(f"{number}")) for number in range(3)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await own.run("last")).stdout == "last"


def test_a_new_loop_has_room_of_its_own():
    queue, own = None, None

    async def hang():
        nonlocal queue, own
        queue = Queue()
        own = OwnPrograms(queue, at_once=1)
        async with queue.one:
            waits = asyncio.create_task(own.run("never"))
            await asyncio.sleep(0)
            assert not waits.done()

    asyncio.run(hang())

    async def again():
        queue.one = asyncio.Lock()
        return await own.run("again")

    assert asyncio.run(again()).stdout == "again"
