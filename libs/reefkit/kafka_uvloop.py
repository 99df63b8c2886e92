"""aiokafka on uvloop: a write on a closed connection is a lost connection."""

# uvloop raises RuntimeError for such a write, where aiokafka expects an OSError. Its metadata task
# would end with that error, and its consumers and producers would then wait for ever.

from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError

_send = AIOKafkaConnection.send


def mend() -> None:
    """Let every client of this process take a closed connection for a lost one."""
    AIOKafkaConnection.send = _send_or_lost


def _send_or_lost(connection: AIOKafkaConnection, *request: Any, **options: Any) -> Any:
    try:
        return _send(connection, *request, **options)
    except RuntimeError as error:
        connection.close(reason=CloseReason.CONNECTION_BROKEN)
        place = f"{connection.host}:{connection.port}"
        raise KafkaConnectionError(f"Connection at {place} broken: {error}") from error
