"""An engine on a bare socket: it decodes nothing, answers nobody before it is told to, and sees who leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import orjson

from .stub_engine import whole


@dataclass
class Gate:
    """An engine that reads every request, and answers once it is opened."""

    asked: int = 0
    left: int = 0
    early: bytes = b""
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        listed = orjson.dumps({"object": "list", "data": [{"id": "reef"}]})
        answered = orjson.dumps(whole({"model": "reef"}))
        with (
            contextlib.closing(writer),
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
        ):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = listed
                if head.startswith(b"POST"):
                    await self._discard(
                        reader, int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                    )
                    self.asked += 1
                    writer.write(self.early)
                    await self._wait(reader)
                    body = answered
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
                await writer.drain()

    async def _discard(self, reader: asyncio.StreamReader, size: int) -> None:
        while size:
            size -= len(await reader.read(min(size, 65536)))

    async def _wait(self, reader: asyncio.StreamReader) -> None:
        opened, gone = (
            asyncio.ensure_future(self.opened.wait()),
            asyncio.ensure_future(reader.read(1)),
        )
        await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.left += 1
            opened.cancel()
            raise ConnectionError
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


@contextlib.asynccontextmanager
async def gated() -> AsyncIterator[tuple[Gate, str]]:
    """Such an engine, and where it is."""
    gate = Gate()
    async with await asyncio.start_server(gate.serve, "127.0.0.1", 0) as server:
        yield gate, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def until(true: Callable[[], bool]) -> None:
    """Wait for something, at most a minute."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)
