"""`reef recipes state`: what a recipe keeps, and whom it asked, from the host's own route."""

import json
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette

from reefcli.commands import recipe_state as command
from reefcli.commands.status import _model_rows, _recipe_rows
from reefcli.errors import CommandFailed
from reefkit.jobs.recipe_store import CallEnd, Use
from reefkit.jobs.store import JobStore
from reefkit.recipes.shown import host_routes
from reefkit.recipes.state import BufferedState

KEYS = ("default/my.recipe:Judged", "default/other:Plain", "support/my.recipe:Judged")


@pytest.fixture
def shown(tmp_path):
    """The answer of a host with three bindings."""
    store = JobStore(tmp_path / "ledger.sqlite")
    state = BufferedState(store, KEYS[0])
    state.put("front", {"best": 1.5})
    state.put_blob("ema", b"12345")
    store.apply(state.effects())
    end = CallEnd(KEYS[0], "smp-1", "judge", "vote", Use(0, 10, 2), 0.25, "ok")
    store.end_call(None, end)
    yield store
    store.close()


@asynccontextmanager
async def asked(store):
    app = Starlette(routes=list(host_routes(store, dict.fromkeys(KEYS, 8))))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        yield client


async def answer(store, scenario="default"):
    async with asked(store) as client:
        return (await client.get(f"/recipes/{scenario}")).json()


async def test_a_host_shows_the_recipes_of_a_scenario(shown):
    found = await answer(shown)
    assert list(found) == list(KEYS[:2])
    assert [(row["key"], row["json"], row["bytes"]) for row in found[KEYS[0]]["state"]] == [
        ("ema", None, 5),
        ("front", '{"best":1.5}', 12),
    ]
    (call,) = found[KEYS[0]]["calls"]
    assert (call["model"], call["purpose"], call["subject"]) == ("judge", "vote", "smp-1")
    assert found[KEYS[1]] == {"state": [], "calls": []}
    assert await answer(shown, "nothing-here") == {}


class Answering:
    def __init__(self, found):
        self.found, self.paths = found, []

    def get(self, path):
        self.paths.append(path)
        return self.found


async def test_the_command_prints_keys_values_and_calls(shown, monkeypatch, capsys):
    gateway = Answering(await answer(shown))
    monkeypatch.setattr(command, "find", lambda *_: gateway)
    command.recipe_state(["default/my.recipe:Judged"], None, None, as_json=False)
    text = capsys.readouterr().out
    assert gateway.paths == ["/reef/scenarios/default/recipes"]
    assert '{"best":1.5}' in text
    assert "(a blob)" in text
    assert "10 + 2" in text
    assert "other:Plain" not in text
    command.recipe_state(["default"], None, None, as_json=True)
    assert set(json.loads(capsys.readouterr().out)) == set(KEYS[:2])


async def test_a_recipe_that_is_not_there_is_named(shown, monkeypatch):
    gateway = Answering(await answer(shown))
    monkeypatch.setattr(command, "find", lambda *_: gateway)
    with pytest.raises(CommandFailed, match=r"no recipe 'x:Y' learns from 'default'; there: my"):
        command.recipe_state(["default/x:Y"], None, None, as_json=False)
    with pytest.raises(CommandFailed, match="name a scenario"):
        command.recipe_state([], None, None, as_json=False)


def test_status_counts_units_without_a_signal_and_shows_budgets():
    waits = "the budget of model 'judge' is used up: 5 of 5 calls used; raise it"
    facts = {
        "state": "waiting for samples", "step": 0, "samples": {"waiting": 1, "unsignalled": 7},
        "signals": {"waits": waits},
    }  # fmt: skip
    judge = {"used": {"calls": 5, "tokens": 60, "cost": 0.0}, "limits": {"calls": 5}, "spent": ["calls"]}  # fmt: skip
    idle = {"used": {"calls": 0, "tokens": 0, "cost": 0.0}, "limits": {}, "spent": []}
    services = {
        "trainer": {"bindings": {KEYS[0]: facts}, "models": {"judge": judge, "served": idle}}
    }
    (row,) = _recipe_rows(services)
    assert row[2] == f"waiting for samples; signals wait: {waits}"
    assert row[4] == "1, 7 without a signal"
    assert list(_model_rows(services)) == [
        ("judge", "trainer", "5 of 5", "60", "0", "used up: calls; raise it in serve.yaml and restart")
    ]  # fmt: skip
