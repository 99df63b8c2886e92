"""aiokafka's idempotent producer after a refused batch: it takes a new producer id."""

# The numbers of a refused batch are spent, and a broker refuses what comes after a gap: all later
# events of the partition, until the process ends. Kafka's own client takes a new id, too.

from typing import Any

from aiokafka.producer.sender import SendProduceReqHandler
from aiokafka.producer.transaction_manager import TransactionManager

_do = SendProduceReqHandler.do


def mend() -> None:
    """Let every producer of this process go on after a refusal."""
    SendProduceReqHandler.do = _do_and_look


async def _do_and_look(handler: Any, node: int) -> Any:
    done = await _do(handler, node)
    manager = handler._sender._txn_manager  # noqa: SLF001
    sent = handler._batches.values()  # noqa: SLF001
    if manager is not None and any(_refused(batch.future) for batch in sent):
        TransactionManager.__init__(manager, None, manager.transaction_timeout_ms)
    return done


def _refused(future: Any) -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None
