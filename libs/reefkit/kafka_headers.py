"""Message headers, as FastStream and its tracing need them."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from aiokafka import ConsumerRecord


# FastStream decodes headers outside of every guard: bytes that are not UTF-8 would drop their whole
# batch without a log line.
class _AnyBytes(bytes):
    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return super().decode(encoding, errors)


async def with_readable_headers(message: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
    """Parse a record or a batch of any producer. An absent header value counts as empty."""
    if not isinstance(message, tuple | list):
        return await parse(_readable(message))
    parsed = await parse(tuple(map(_readable, message)))
    # Tracing links a message of a batch only if it has a `correlation_id`.
    for number, headers in enumerate(parsed.batch_headers):
        headers.setdefault("correlation_id", f"{parsed.message_id}-{number}")
    return parsed


def _readable(record: ConsumerRecord[Any, Any]) -> ConsumerRecord[Any, Any]:
    if all(value is not None and value.isascii() for _, value in record.headers):
        return record
    headers = tuple((name, _AnyBytes(value or b"")) for name, value in record.headers)
    return replace(record, headers=headers)
