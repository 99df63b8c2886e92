"""What the head of a request may be: how large its target and its headers, and which of them come once."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.domain.errors import ApiError, invalid

_ONCE = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"x-reef-scenario",
        b"x-reef-release-id",
        b"x-reef-agent-record-id",
        b"x-reef-capture",
    }
)


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Bytes count names and values; the target has the same limit of its own."""

    headers: int = 100
    size_bytes: int = 32 * 1024

    def refusal(
        self, headers: Sequence[tuple[bytes, bytes]], path: bytes, query: bytes
    ) -> ApiError | None:
        """What to answer to a head that is too large, or says twice what can be meant once."""
        if len(headers) > self.headers:
            return ApiError(
                431, f"The request has more than {self.headers} headers.", code="headers_too_large"
            )
        if sum([len(name) + len(value) for name, value in headers]) > self.size_bytes:
            return head_too_large(self.size_bytes)
        if len(path) + len(query) > self.size_bytes:
            return ApiError(
                414,
                f"The request's target has more than {self.size_bytes} bytes.",
                code="target_too_large",
            )
        if len({name for name, _ in headers}) != len(headers):
            return _repeated(headers)
        return None


def _repeated(headers: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
    """Which of two scenarios or receipts was meant cannot be known: a proxy may have added one."""
    seen = set()
    for name, _ in headers:
        if name in seen and (name in _ONCE or name.startswith(b"x-reef-tag-")):
            header = name.decode("latin-1")
            return invalid(header, f"The header {header} is there more than once.")
        seen.add(name)
    return None


def head_too_large(limit_bytes: int) -> ApiError:
    """431."""
    return ApiError(
        431, f"The request's headers have more than {limit_bytes} bytes.", code="headers_too_large"
    )
