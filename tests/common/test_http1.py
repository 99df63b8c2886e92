"""The head of an answer waits for what follows at once, and for nothing else."""

import asyncio

from reefkit.http1 import HeadFirst


class Wire:
    """A transport that keeps its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def on(wire: Wire) -> HeadFirst:
    return HeadFirst(wire, asyncio.get_running_loop())  # type: ignore[arg-type]


async def test_a_whole_answer_is_one_write() -> None:
    wire = Wire()
    answer = on(wire)
    answer.write(b"head ")
    answer.write(b"body")
    await asyncio.sleep(0)
    assert wire.writes == [b"head body"]


async def test_the_head_of_a_stream_does_not_wait_for_its_first_event() -> None:
    wire = Wire()
    answer = on(wire)
    answer.write(b"head ")
    assert wire.writes == []
    await asyncio.sleep(0)
    assert wire.writes == [b"head "]
    answer.write(b"one ")
    answer.write(b"two")
    assert wire.writes == [b"head ", b"one ", b"two"]


async def test_a_head_is_dropped_if_its_connection_has_ended() -> None:
    wire, faults = Wire(), []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    on(wire).write(b"head")
    wire.close()  # as a refusal of the next request does
    await asyncio.sleep(0)
    assert (wire.writes, faults) == ([], [])


async def test_a_closed_answer_keeps_its_head() -> None:
    wire = Wire()
    answer = on(wire)
    answer.write(b"head")
    answer.close()
    assert wire.writes == [b"head"]
    assert answer.is_closing()
    await asyncio.sleep(0)
    assert wire.writes == [b"head"]
