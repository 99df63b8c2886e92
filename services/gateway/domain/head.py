"""How large the head of a request may be: its target, and its headers in number and in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.domain.errors import ApiError


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Bytes count names and values; the target has the same limit of its own."""

    headers: int = 100
    size_bytes: int = 32 * 1024

    def refusal(self, headers: Sequence[tuple[bytes, bytes]], path: bytes, query: bytes) -> ApiError | None:
        """What to answer to a head that is too large."""
        if len(headers) > self.headers:
            return ApiError(431, f"The request has more than {self.headers} headers.", code="headers_too_large")
        if sum([len(name) + len(value) for name, value in headers]) > self.size_bytes:
            return head_too_large(self.size_bytes)
        if len(path) + len(query) > self.size_bytes:
            return ApiError(414, f"The request's target has more than {self.size_bytes} bytes.", code="target_too_large")
        return None


def head_too_large(limit_bytes: int) -> ApiError:
    """431."""
    return ApiError(431, f"The request's headers have more than {limit_bytes} bytes.", code="headers_too_large")
