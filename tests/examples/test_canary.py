"""When the example of a canary compares its sides."""

import itertools

import httpx
import pytest

from recipes.examples import canary


async def compared(
    monkeypatch: pytest.MonkeyPatch, rewards: list[tuple[float, float]], at_once: int
) -> tuple[str, int]:
    """The verdict on sessions that come in pairs of (tried, other), and the sessions a side then."""
    seen = itertools.count(0, at_once)
    at = 0

    async def samples(self: canary.Canary) -> list[dict]:
        nonlocal at
        at = next(seen)
        rows = [
            {"sample_id": f"{side}{n}", "release_id": side, "score": reward}
            for n, pair in enumerate(rewards[:at])
            for side, reward in zip("ab", pair, strict=True)
        ]
        assert at <= len(rewards), "it should have ended"
        return rows

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": []})

    monkeypatch.setattr(canary.Canary, "_samples", samples)
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://gateway")
    async with client as http:
        run = canary.Canary(http, "default", "a", 0.5, 0.95, every_s=0)
        return await run.run(), at


async def test_a_streak_between_two_looks_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal at 20 sessions and at 40, far apart at 30: then nobody looks."""
    mixed = [(0.0, 1.0), (1.0, 0.0)]
    rewards = mixed * 10 + [(1.0, 0.0)] * 10 + [(0.0, 1.0)] * 10 + [(0.0, 1.0)] * 40
    found, at = await compared(monkeypatch, rewards, 1)
    assert (found, at) == ("worse", 80)


@pytest.mark.parametrize("at_once", [1, 7, 20])
async def test_a_plain_difference_ends_at_the_first_look(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    rewards = [(0.9 + 0.1 * (n % 2), 0.1 * (n % 3)) for n in range(60)]
    found, at = await compared(monkeypatch, rewards, at_once)
    assert found == "better"
    assert 20 <= at < 20 + at_once
