"""The weights' version of each sampled token, as half-open spans."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens from `start` up to, but not including, `end`."""

    version: str
    start: int
    end: int


def extend_spans(
    spans: tuple[VersionSpan, ...], version: str, tokens: int = 1
) -> tuple[VersionSpan, ...]:
    """`spans` with `tokens` more tokens of `version`: adjacent, in order, none empty."""
    if tokens <= 0:
        return spans
    if spans and spans[-1].version == version:
        last = spans[-1]
        return (*spans[:-1], VersionSpan(version, last.start, last.end + tokens))
    start = spans[-1].end if spans else 0
    return (*spans, VersionSpan(version, start, start + tokens))
