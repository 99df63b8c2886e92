"""A TCP proxy in front of the broker whose connections can be cut, and that can be made to answer nobody."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

__all__ = ["Proxy", "proxied"]


class Proxy:
    """Passes bytes on both ways. Addresses in the broker's answers are rewritten, so that clients come back here."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.port = 0
        self.cuts = 0
        self.refusing = False
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        try:
            await asyncio.gather(
                self._requests(reader, up_writer), self._answers(up_reader, writer)
            )
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (writer, up_writer):
                self._writers.discard(one)
                one.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        raise asyncio.IncompleteReadError(b"", None)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Whole answers, their broker address with the port of this proxy in its place."""
        old, new = struct.pack(">i", self.target[1]), struct.pack(">i", self.port)
        address = struct.pack(">h", len(self.target[0])) + self.target[0].encode()
        compact = bytes([len(self.target[0]) + 1]) + self.target[0].encode()
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answer = await reader.readexactly(size)
            for spelled in (address, compact):
                answer = answer.replace(spelled + old, spelled + new)
            writer.write(struct.pack(">i", len(answer)) + answer)
            await writer.drain()

    def cut(self) -> int:
        """Reset every connection. Returns how many there were."""
        found = len(self._writers) // 2
        self.cuts += 1
        for writer in list(self._writers):
            writer.transport.abort()
        return found


@contextlib.asynccontextmanager
async def proxied(bootstrap: str) -> AsyncIterator[Proxy]:
    """A proxy on a free port."""
    host, _, port = bootstrap.rpartition(":")
    proxy = Proxy(host, int(port))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.refusing = True
        server.close()
        proxy.cut()
        await server.wait_closed()
