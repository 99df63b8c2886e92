"""The count of an agent's processes costs little where it reads those of a whole machine."""

import socket
import time
from collections.abc import Iterator

import pytest

from reefkit.jail import agent


@pytest.mark.parametrize(("takes_s", "counts"), [(0.0, {9, 10}), (0.1, {1})])
def test_a_slow_count_is_made_less_often(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, counts: set[int]
) -> None:
    counted: list[int] = []

    def over(_job: object) -> str:
        counted.append(1)
        clock[0] += takes_s
        return ""

    def waits() -> Iterator[tuple[int, int]]:
        for _ in range(20):  # of 0.05 s
            clock[0] += 0.05
            yield 0, 0
        yield 7, 0

    clock, answers = [100.0], waits()
    monkeypatch.setattr(agent, "_over", over)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(agent.os, "waitpid", lambda *_: next(answers))
    monkeypatch.setattr(agent.select, "select", lambda *_: ([], [], []))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert agent._wait(7, ours, {}) == (0, "")
    assert len(counted) in counts
