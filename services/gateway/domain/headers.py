"""Limits of a request's headers and target, and the headers that may be there only once."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.domain.errors import ApiError, invalid

_SINGLE = b"""
authorization x-api-key x-reef-scenario x-reef-release-id x-reef-agent-record-id x-reef-capture
x-reef-harness x-reef-session-end
"""
_ONCE = frozenset(_SINGLE.split())


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """The limits of a request's head."""

    headers: int = 100
    size_bytes: int = 32 * 1024  # of names and values; the target has the same limit

    def refusal(
        self, headers: Sequence[tuple[bytes, bytes]], path: bytes, query: bytes
    ) -> ApiError | None:
        """Return the refusal of headers that are too large or repeated; None if they are fine."""
        if len(headers) > self.headers:
            words = f"The request has more than {self.headers} headers."
            return ApiError(431, words, code="headers_too_large")
        if sum([len(name) + len(value) for name, value in headers]) > self.size_bytes:
            return headers_too_large(self.size_bytes)
        if len(path) + len(query) > self.size_bytes:
            words = f"The request's target has more than {self.size_bytes} bytes."
            return ApiError(414, words, code="target_too_large")
        if len({name for name, _ in headers}) != len(headers):
            return _repeated(headers)
        return None


def _repeated(headers: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
    # a proxy may have added the second value: the meant one cannot be known
    seen = set()
    for name, _ in headers:
        if name in seen and (name in _ONCE or name.startswith(b"x-reef-tag-")):
            header = name.decode("latin-1")
            return invalid(header, f"The header {header} is there more than once.")
        seen.add(name)
    return None


def headers_too_large(limit_bytes: int) -> ApiError:
    """431: the headers are too large."""
    words = f"The request's headers have more than {limit_bytes} bytes."
    return ApiError(431, words, code="headers_too_large")
