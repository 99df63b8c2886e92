"""A broker that goes away in the moment of a write, as uvloop tells it."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.conn import AIOKafkaConnection

from reefkit import kafka_uvloop


class ClosedWriter:
    """A writer whose transport uvloop has closed, and whose reader has not heard of it."""

    def write(self, data: bytes) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")

    def close(self) -> None: ...


@pytest.mark.broker
async def test_a_client_goes_on_after_a_write_on_a_closed_connection(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AIOKafkaConnection, "send", AIOKafkaConnection.send)  # put back at the end
    kafka_uvloop.mend()
    async with AIOKafkaConsumer(bootstrap_servers=kafka_bootstrap) as consumer:
        client = consumer._client
        for _ in range(3):
            lost = [connection for connection in client._conns.values() if connection._writer]
            writers = [connection._writer for connection in lost]
            for connection in lost:
                connection._writer = ClosedWriter()
            async with asyncio.timeout(30):
                while not await client.force_metadata_update():
                    await asyncio.sleep(0.05)
            assert not any(connection in client._conns.values() for connection in lost)
            for writer in writers:
                writer.close()
