"""Which weights produced which tokens: half-open spans over a choice's sampled tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens `start` (included) to `end` (not included) came from `version`."""

    version: str
    start: int
    end: int


def extended(
    spans: tuple[VersionSpan, ...], version: str, tokens: int = 1
) -> tuple[VersionSpan, ...]:
    """`spans` with `tokens` more tokens of `version`. Spans stay adjacent, in order, and without empty members."""
    if tokens <= 0:
        return spans
    if spans and spans[-1].version == version:
        last = spans[-1]
        return (*spans[:-1], VersionSpan(version, last.start, last.end + tokens))
    start = spans[-1].end if spans else 0
    return (*spans, VersionSpan(version, start, start + tokens))
