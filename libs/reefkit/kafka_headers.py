"""Headers that are no text: FastStream decodes them where nothing guards it, and would pass over their whole batch in silence."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from aiokafka import ConsumerRecord


class _AnyBytes(bytes):
    """The same bytes; as text, whatever they are."""

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return super().decode(encoding, errors)


async def with_readable_headers(message: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
    """FastStream's parser of one record, or of a batch, for records of anybody's making. An absent value of a header is an empty one."""
    if isinstance(message, tuple | list):
        return await parse(tuple([_readable(record) for record in message]))
    return await parse(_readable(message))


def _readable(record: ConsumerRecord[Any, Any]) -> ConsumerRecord[Any, Any]:
    if all(value is not None and value.isascii() for _, value in record.headers):
        return record
    return replace(
        record, headers=tuple((name, _AnyBytes(value or b"")) for name, value in record.headers)
    )
