"""Whole topics, read to their real end."""

from aiokafka import ConsumerRecord

from reefcli.replay.log import open_log


async def everything(bootstrap: str, *topics: str) -> list[ConsumerRecord]:
    """All records of these topics, in the order of time."""
    log = await open_log(bootstrap, topics)
    return [record async for batch in log.batches(1000) for record in batch]
