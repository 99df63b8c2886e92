"""The weights' version of each sampled token, as half-open spans."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens from `start` up to, but not including, `end`."""

    version: str
    start: int
    end: int


def extend_spans(spans: tuple[VersionSpan, ...], version: str) -> tuple[VersionSpan, ...]:
    """`spans` with a token more of `version`: adjacent, in order, none empty."""
    last = spans[-1] if spans else VersionSpan(version, 0, 0)
    if last.version == version:
        return (*spans[:-1], VersionSpan(version, last.start, last.end + 1))
    return (*spans, VersionSpan(version, last.end, last.end + 1))
