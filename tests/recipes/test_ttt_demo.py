"""The demonstration of TTT-Discover: the figure of a release is its solution's, verified anew."""

from types import SimpleNamespace

import httpx
import pytest

from recipes.ttt_discover import demo
from recipes.ttt_discover.examples.row_pattern.problem import PROBLEM

DIGITS = "525525622426624463"


@pytest.fixture
def stage(monkeypatch):
    solution = PROBLEM.score(DIGITS).solution
    told = {"text": DIGITS, "figure": dict(solution.figure), "value": 99.0, "verifier_calls": 128}

    def answer(request: httpx.Request) -> httpx.Response:
        if "/r1/contents/solution/solution.json" in request.url.path:
            return httpx.Response(200, json=told)
        return httpx.Response(404 if "/r0/" in request.url.path else 500)

    transport, client = httpx.MockTransport(answer), httpx.AsyncClient
    monkeypatch.setattr(demo.httpx, "AsyncClient", lambda **kw: client(transport=transport, **kw))
    return SimpleNamespace(gateway_url="http://gateway", seed=0)


async def test_a_release_is_worth_its_solution_whatever_it_says_of_itself(stage):
    shown = demo.DEMONSTRATIONS["tiny-count"]()
    none = await shown.measure(stage, "r0", 1, 4)
    assert (none.mean, none.answers) == (0.0, 0)
    assert shown.panel() == []
    assert shown.files() == {}
    found = await shown.measure(stage, "r1", 2, 4)
    assert found.mean == PROBLEM.score(DIGITS).reward == pytest.approx(2.3943, abs=1e-3)
    assert (found.low, found.high, found.answers) == (found.mean, found.mean, 128)
    assert shown.panel()[-1] == f"{found.mean:.6f}  {DIGITS}"
    assert shown.files()["best.png"].startswith(b"\x89PNG")


async def test_a_gateway_that_fails_is_no_figure_of_zero(stage):
    with pytest.raises(httpx.HTTPStatusError):
        await demo.DEMONSTRATIONS["tiny-count"]().measure(stage, "r2", 1, 4)
