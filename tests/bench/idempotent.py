"""A door in front of a broker that knows no idempotent producers: it gives them their id, and takes what they produce.

Produce requests are acknowledged and dropped; all others are passed on. The CPU time of a client with
idempotence can be measured so, and no more: the broker's own share is missing.
"""

import asyncio
import struct
from typing import Any

from aiokafka.protocol import admin, metadata, produce, transaction

OUT_OF_ORDER, TOO_LARGE = 45, 10
PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22
_FRAME, _HEAD = struct.Struct(">i"), struct.Struct(">hhih")


class Door:
    """Listens at `port` and advertises itself. `batches`: (topic, partition, producer id, first sequence, events)."""

    def __init__(self, port: int, broker: str, *, keep: bool = False) -> None:
        self.port = port
        self._host, _, broker_port = broker.rpartition(":")
        self._broker_port = int(broker_port)
        self._keep = keep
        self.batches: list[tuple[str, int, int, int, int]] = []
        self.swallow = 0  # so many produce requests are taken, and their connection cut
        self.refusals: list[int] = []  # error codes of the next batches
        self.known: dict[tuple[int, str, int], int] = {}  # the next sequence that it takes
        self._producers = 0

    async def serve(self) -> asyncio.Server:
        """Open it."""
        return await asyncio.start_server(self._client, "127.0.0.1", self.port)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside, outside = await asyncio.open_connection(self._host, self._broker_port)
        try:
            while True:
                request = await _frame(reader)
                key, version, correlation, length = _HEAD.unpack_from(request)
                body = request[_HEAD.size + max(0, length) :]
                if key == PRODUCE:
                    answer = self._produced(version, body)
                    if self.swallow:
                        self.swallow -= 1
                        return
                elif key == INIT_PRODUCER_ID:
                    self._producers += 1
                    answer = transaction.InitProducerIdResponse_v0(
                        0, 0, self._producers, 0
                    ).encode()
                else:
                    outside.write(_FRAME.pack(len(request)) + request)
                    answer = self._changed(key, version, (await _frame(inside))[4:])
                writer.write(_FRAME.pack(len(answer) + 4) + _FRAME.pack(correlation) + answer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            outside.transport.abort()
            writer.transport.abort()

    def _changed(self, key: int, version: int, answer: bytes) -> bytes:
        if key == API_VERSIONS:
            known: Any = admin.ApiVersionResponse_v0.decode(answer)
            versions = [
                row for row in known.api_versions if row[0] not in (PRODUCE, INIT_PRODUCER_ID)
            ]
            versions += [(PRODUCE, 3, 7), (INIT_PRODUCER_ID, 0, 0)]
            return admin.ApiVersionResponse_v0(known.error_code, versions).encode()
        if key == METADATA:
            found: Any = getattr(metadata, f"MetadataResponse_v{version}").decode(answer)
            found.brokers = [(row[0], "127.0.0.1", self.port, *row[3:]) for row in found.brokers]
            return bytes(found.encode())
        return answer

    def _produced(self, version: int, body: bytes) -> bytes:
        request: Any = getattr(produce, f"ProduceRequest_v{version}").decode(body)
        offsets = (0, -1, 0) if version >= 5 else (0, -1)
        topics = [
            (topic, [(number, self._taken(topic, number, data), *offsets) for number, data in rows])
            for topic, rows in request.topics
        ]
        answer: Any = getattr(produce, f"ProduceResponse_v{version}")(topics, 0)
        return bytes(answer.encode())

    def _taken(self, topic: str, partition: int, data: bytes) -> int:
        """The error code: a batch is refused if its numbers do not go on from those before."""
        if not self._keep:
            return 0
        producer, _, sequence, count = struct.unpack_from(">qhii", data, 43)
        self.batches.append((topic, partition, producer, sequence, count))
        at = producer, topic, partition
        if self.refusals:
            return self.refusals.pop()
        if sequence > self.known.get(at, 0):
            return OUT_OF_ORDER
        self.known[at] = sequence + count
        return 0


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = _FRAME.unpack(await reader.readexactly(4))
    return await reader.readexactly(length)


async def door(port: int, broker: str) -> None:
    """Run one for ever."""
    async with await Door(port, broker).serve() as server:
        await server.serve_forever()
