"""Message headers that are not text.

FastStream decodes headers outside of every guard. Bytes that are not UTF-8 would drop their whole
batch without a word.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from aiokafka import ConsumerRecord


class _AnyBytes(bytes):
    """Bytes that can always be decoded as text."""

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return super().decode(encoding, errors)


async def with_readable_headers(message: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
    """Parse one record, or a batch, of any producer. An absent header value counts as empty."""
    if isinstance(message, tuple | list):
        return await parse(tuple([_readable(record) for record in message]))
    return await parse(_readable(message))


def _readable(record: ConsumerRecord[Any, Any]) -> ConsumerRecord[Any, Any]:
    if all(value is not None and value.isascii() for _, value in record.headers):
        return record
    return replace(
        record, headers=tuple((name, _AnyBytes(value or b"")) for name, value in record.headers)
    )
