"""The connections to a serving node: what is HTTP, where an answer ends, and which connections are used again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from services.gateway.upstream.pool import CannotConnectError, Pool
from services.gateway.upstream.wire import HELD_BYTES, BrokenOffError

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\ncontent-length: 5\r\n\r\nhello"


class Node:
    """A server that says what it is told; `requests` are those that it read, `met` counts connections."""

    def __init__(self, *answers: bytes, close: bool = False, pause_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.close = close
        self.pause_s = pause_s
        self.requests: list[bytes] = []
        self.met = 0
        self.url = ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                for piece in (
                    (answer[n : n + 7] for n in range(0, len(answer), 7))
                    if self.pause_s
                    else (answer,)
                ):
                    writer.write(piece)
                    await asyncio.sleep(self.pause_s)
                await writer.drain()
                if self.close:
                    break
            if not self.close:
                await reader.read()
        writer.close()

    @contextlib.asynccontextmanager
    async def up(self, prefix: str = "", **settings: Any) -> AsyncIterator[Pool]:
        server = await asyncio.start_server(self.talk, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{prefix}"
        pool = Pool(
            self.url,
            [(b"content-type", b"application/json")],
            **{"connect_timeout_s": 5.0, "read_timeout_s": 20.0, **settings},
        )
        try:
            yield pool
        finally:
            pool.close()
            server.close()
            await asyncio.sleep(0.01)


async def whole(pool: Pool, body: bytes = b"{}") -> tuple[int, bytes]:
    """One exchange, its connection given back."""
    connection = await pool.post("/v1/x", body, [(b"traceparent", b"00")])
    found = b""
    while piece := await connection.some():
        found += piece
    pool.give_back(connection)
    return connection.status, found


async def test_one_connection_after_another_exchange_and_what_is_sent():
    node = Node(OK, OK, OK, pause_s=0.001)
    async with node.up("/base") as pool:
        assert [await whole(pool) for _ in range(3)] == [(200, b"hello")] * 3
        assert node.met == 1
        assert node.requests[0].startswith(b"POST /base/v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
        assert (
            b"\r\ncontent-type: application/json\r\ntraceparent: 00\r\ncontent-length: 2\r\n\r\n{}"
            in node.requests[0]
        )


@pytest.mark.parametrize(
    ("answer", "body", "again"),
    [
        (b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" + OK, b"hello", True),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nlate: 1\r\n\r\n",
            b"hello",
            True,
        ),
        (
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
            b"hello",
            False,
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (OK + b"HTTP/1.1 200 OK\r\n\r\n", b"hello", False),
    ],
    ids=["interim", "chunked", "close", "nothing", "more than asked for"],
)
async def test_where_an_answer_ends(answer: bytes, body: bytes, again: bool):
    node = Node(answer, OK)
    async with node.up() as pool:
        assert (await whole(pool))[1] == body
        node.answers = [OK]
        assert await whole(pool) == (200, b"hello")
        assert node.met == (1 if again else 2)


async def test_a_body_that_ends_with_the_connection():
    node = Node(b"HTTP/1.1 200 OK\r\n\r\nhello", close=True)
    async with node.up() as pool:
        assert await whole(pool) == (200, b"hello")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 60_000,
        b"",
    ],
    ids=[
        "another protocol",
        "short",
        "torn chunk",
        "no length",
        "upgrade",
        "head without end",
        "nothing",
    ],
)
async def test_what_is_no_answer(answer: bytes):
    node = Node(answer, close=True)
    async with node.up() as pool:
        with pytest.raises(BrokenOffError):
            await whole(pool)


async def test_silence_and_nobody_there():
    node = Node(OK[:-3])
    async with node.up(read_timeout_s=0.2) as pool:
        with pytest.raises(TimeoutError):
            await whole(pool)
    with pytest.raises(CannotConnectError):
        await whole(Pool(node.url, [], connect_timeout_s=5.0, read_timeout_s=5.0))


async def test_a_node_waits_for_a_reader_that_is_slow_and_silence_is_not_counted_meanwhile():
    size = 8 * 1024 * 1024
    node = Node(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
    async with node.up(read_timeout_s=0.2) as pool:
        connection = await pool.post("/v1/x", b"{}")
        await asyncio.sleep(0.6)
        assert connection._held < 4 * HELD_BYTES
        found = 0
        while piece := await connection.some():
            found += len(piece)
        assert found == size
        pool.give_back(connection)


async def test_a_large_body_goes_out_whole_and_a_closed_connection_is_not_used_again():
    node = Node(OK, close=True)
    async with node.up() as pool:
        body = bytes(range(256)) * 16 * 1024
        assert await whole(pool, body) == (200, b"hello")
        assert node.requests[0].endswith(body)
        await asyncio.sleep(0.05)
        node.answers = [OK]
        assert await whole(pool) == (200, b"hello")
        assert node.met == 2


def test_credentials_of_a_url_are_sent_and_the_port_is_said():
    pool = Pool("http://user:p%40ss@node.example:8000", [], connect_timeout_s=1, read_timeout_s=1)
    assert pool._fixed == b"host: node.example:8000\r\nauthorization: Basic dXNlcjpwQHNz\r\n"
    assert (
        Pool("http://[::1]:80/", [], connect_timeout_s=1, read_timeout_s=1)._fixed
        == b"host: [::1]\r\n"
    )
    assert Pool("https://node.example", [], connect_timeout_s=1, read_timeout_s=1)._port == 443
