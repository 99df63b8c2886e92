"""Everything but the hot paths: scenarios, commands, reads, access, limits, and the document that describes them."""

import hashlib
from pathlib import Path

import httpx
import pytest

from reefcommon.errors import BadConfig, Damaged
from reefcommon.events import (
    HoldRequested,
    PromoteRequested,
    Release,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    ScenarioCreateRequested,
    ScenarioHeld,
    utc_now,
)
from reefcommon.settings import SystemSettings
from services.gateway.__main__ import address
from services.gateway.edge import tokens
from services.gateway.settings import Settings

from .conftest import CHAT, Bench, bench_of
from .fakes import MemoryHeads, release


def published(scenario: str, sequence: int) -> ReleasePublished:
    row = release(scenario, sequence, None, operation="rollback")
    return ReleasePublished(
        event_id=row.release_id, at=utc_now(), scenario=scenario, release=row, command_id="c"
    )


async def test_releases_are_listed_newest_first(bench: Bench) -> None:
    """What waits comes first and is marked; one release is current."""
    bench.heads.chains["default"].insert(0, release("default", 1, "a"))
    bench.heads.waiting["default"] = [release("default", 2, "b")]
    rows = (await bench.http.get("/reef/scenarios/default/releases")).json()["data"]
    assert [(row["sequence"], row["current"], row["pending"]) for row in rows] == [
        (2, False, True),
        (1, True, False),
        (0, False, False),
    ]
    assert (await bench.http.get("/reef/scenarios/nowhere/releases")).status_code == 404


async def test_a_pending_release_that_can_never_be_promoted_says_so(bench: Bench) -> None:
    """The publisher refuses what was made from another release than the head; so the list says it before somebody tries."""
    bench.heads.chains["default"].insert(0, release("default", 1, "a"))
    fresh, late = release("default", 2, "b"), release("default", 1, "c")
    fresh = fresh.model_copy(update={"parent_id": "rel-default-1"})
    late = late.model_copy(update={"release_id": "rel-late", "parent_id": "rel-default-0"})
    bench.heads.waiting["default"] = [late, fresh]
    rows = (await bench.http.get("/reef/scenarios/default/releases")).json()["data"]
    assert {row["release_id"]: row["stale"] for row in rows if row["pending"]} == {
        "rel-default-2": False,
        "rel-late": True,
    }
    assert {row["release_id"]: row["stale_reason"] for row in rows if row["stale_reason"]} == {
        "rel-late": "made from rel-default-0, but rel-default-1 is the head: it cannot be promoted"
    }


async def test_rollback_and_promote(bench: Bench) -> None:
    """200 with the new release; 404 for one that is not there; 409 where the publisher refuses; 504 with where to look."""
    bench.commands.answers = [
        published("default", 5),
        ReleaseRejected(
            event_id="r",
            at=utc_now(),
            scenario="default",
            outcome="conflicted",
            reason="the head moved",
            command_id="c",
        ),
    ]
    path, body = "/reef/scenarios/default/rollback", {"release_id": "rel-default-0"}
    done = await bench.http.post(path, json=body)
    assert (done.status_code, done.json()["release_id"]) == (200, "rel-default-5")
    refused = await bench.http.post(path, json=body)
    assert (refused.status_code, "the head moved" in refused.text) == (409, True)
    late = await bench.http.post(path, json=body)
    assert (late.status_code, "/reef/status" in late.text) == (504, True)
    assert (await bench.http.post(path, json={"release_id": "rel-none"})).status_code == 404
    assert (await bench.http.post("/reef/scenarios/default/promote", json=body)).status_code == 404
    bench.heads.waiting["default"] = [release("default", 9, "b")]
    bench.commands.answers = [published("default", 9)]
    assert (
        await bench.http.post(
            "/reef/scenarios/default/promote", json={"release_id": "rel-default-9"}
        )
    ).status_code == 200
    assert [type(command) for command in bench.commands.sent] == [RollbackRequested] * 3 + [
        PromoteRequested
    ]


async def test_scenarios_are_created_on_demand(bench: Bench) -> None:
    """A new one asks the publisher; one that exists is left as it is; a name that cannot be is 400."""
    bench.commands.answers = [published("fresh", 0)]
    made = await bench.http.post("/reef/scenarios", json={"scenario": "fresh"})
    assert (made.status_code, made.json()["scenario"]) == (201, "fresh")
    again = await bench.http.post("/reef/scenarios", json={"scenario": "default"})
    assert (again.status_code, again.json()["head"]["release_id"]) == (200, "rel-default-0")
    assert [type(command) for command in bench.commands.sent] == [ScenarioCreateRequested]
    assert (await bench.http.post("/reef/scenarios", json={"scenario": "Not A Name"})).json()[
        "error"
    ]["param"] == "scenario"
    names = [row["scenario"] for row in (await bench.http.get("/reef/scenarios")).json()["data"]]
    assert "default" in names


async def test_implicit_scenarios() -> None:
    """Off: 404. On: the first request waits for the publisher, and is served by what it made."""
    async with bench_of(implicit_scenarios=True) as bench:
        bench.commands.answers = [published("new-one", 0)]
        answer = await bench.chat("new-one")
        assert (answer.status_code, answer.headers["x-reef-release-id"]) == (200, "rel-new-one-0")
        assert (await bench.chat("new-two")).status_code == 503
        assert (await bench.chat("NO GOOD")).status_code == 400


async def test_default_is_served_before_it_exists() -> None:
    """Without a head `default` is served by the base model, and asked for in the background."""
    async with bench_of() as bench:
        bench.gateway.handlers.table._heads.clear()
        answer = await bench.chat()
        assert answer.status_code == 200
        assert "x-reef-release-id" not in answer.headers
        assert bench.log.records[0].release_id is None
        assert bench.commands.sent[0].scenario == "default"


async def test_heads_that_were_never_read() -> None:
    """Before the heads are known nothing is served by the base model in their place: 503."""
    async with bench_of() as bench:
        table = bench.gateway.handlers.table
        table._heads.clear()
        table.filled = False
        answer = await bench.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "heads_unavailable")
        assert bench.engine.requests == []


async def test_reads_are_relayed(bench: Bench) -> None:
    """From the experience service, with the filters; its words and status are kept; away is 503."""
    bench.reads.rows["/records/rec-1"] = {"record": {"event_id": "rec-1", "scenario": "default"}}
    bench.reads.rows["/scenarios/default/records"] = {"data": [], "next_cursor": None}
    assert (await bench.http.get("/reef/records/rec-1")).json()["record"]["event_id"] == "rec-1"
    assert (await bench.http.get("/reef/records/rec-2")).json()["error"][
        "code"
    ] == "record_not_found"
    listed = await bench.http.get(
        "/reef/scenarios/default/records",
        params={"session": "a b", "outcome": "ok", "limit": 5, "cursor": "x"},
    )
    assert listed.json() == {"data": [], "next_cursor": None}
    assert bench.reads.asked[-1] == (
        "/scenarios/default/records",
        {"session": "a b", "outcome": "ok", "limit": "5", "cursor": "x"},
    )
    for path in ("sessions", "samples", "steps"):
        await bench.http.get(f"/reef/scenarios/default/{path}")
        assert bench.reads.asked[-1][0] == f"/scenarios/default/{path}"
    assert (await bench.http.get("/reef/scenarios/default/records", params={"limit": 0})).json()[
        "error"
    ]["param"] == "limit"
    bench.reads.away = True
    assert (await bench.http.get("/reef/records/rec-1")).status_code == 503


async def test_contract(bench: Bench) -> None:
    """What a client must send is said in words and names."""
    contract = (await bench.http.get("/reef/scenarios/default/contract")).json()
    assert contract["recipes"] == [
        {"recipe": "recipes.sao.recipe:SAORecipe", "review": "auto", "knobs": {"batch_size": 4}}
    ]
    assert contract["learns"]
    silent = (await bench.http.get("/reef/scenarios/slow/contract")).json()
    assert (silent["learns"], silent["report"]["headers"]) == (False, {"x-reef-scenario": "slow"})
    listed = {
        row["scenario"]: row["learns"]
        for row in (await bench.http.get("/reef/scenarios")).json()["data"]
    }
    heads = (await bench.http.get("/reef/status")).json()["heads"]
    assert listed == {scenario: row["learns"] for scenario, row in heads.items()}
    assert (listed["default"], listed["slow"]) == (True, False)


async def test_a_held_scenario_is_shown_until_it_is_resumed(bench: Bench) -> None:
    async def held() -> str | None:
        return (await bench.http.get("/reef/status")).json()["heads"]["default"]["held"]

    path = "/reef/scenarios/default"
    assert await held() is None
    bench.commands.answers = [
        ScenarioHeld(event_id="cmd", at=utc_now(), scenario="default", command_id="cmd")
    ] * 2
    answer = await bench.http.post(f"{path}/hold", json={"reason": "until Monday"})
    assert answer.json() == {"scenario": "default", "held": "until Monday", "pending": []}
    await bench.heads.hold("default", "until Monday")
    assert await held() == "until Monday"
    form = await bench.http.post(f"{path}/resume", content=b"")
    assert form.status_code == 400, "a page in a browser could send this"
    assert (await bench.http.post(f"{path}/resume", json={})).json()["held"] is None
    asked = [(type(sent), sent.reason) for sent in bench.commands.sent]
    assert asked == [(HoldRequested, "until Monday"), (HoldRequested, None)]
    unknown = await bench.http.post("/reef/scenarios/none-such/hold", json={})
    assert unknown.status_code == 404


async def test_operations(bench: Bench) -> None:
    """Alive, ready, counted, described."""
    await bench.chat()
    assert (await bench.http.get("/healthz")).status_code == 200
    assert (await bench.http.get("/readyz")).status_code == 200
    metrics = (await bench.http.get("/metrics")).text
    assert 'reef_gateway_requests_total{route="/v1/chat/completions",status="200"}' in metrics
    await bench.http.get("/reef/scenarios/default/releases")
    metrics = (await bench.http.get("/metrics")).text
    assert (
        'reef_gateway_requests_total{route="/reef/scenarios/{scenario}/releases",status="200"}'
        in metrics
    )
    assert not [
        line
        for line in metrics.splitlines()
        if line.startswith("reef_gateway_") and "default" in line
    ], "paths, not scenarios"
    status = (await bench.http.get("/reef/status")).json()
    assert status["heads"]["default"]["release_id"] == "rel-default-0"
    assert set(status["services"]) == {
        "gateway",
        "experience",
        "trainer",
        "harness",
        "evaluator",
        "publisher",
    }
    document = (await bench.http.get("/openapi.json")).json()
    assert {"/v1/chat/completions", "/reef/report", "/reef/scenarios/{scenario}/rollback"} <= set(
        document["paths"]
    )
    assert (await bench.http.get("/docs")).status_code == 200


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"messages": "hi"}', "messages"),
        (b'{"messages": [1]}', "messages[0]"),
        (b'{"messages": [{"content": "x"}]}', "messages[0].role"),
        (b'{"model": 3, "messages": [{"role": "user", "content": "x"}]}', "model"),
        (b'{"messages": [{"role": "user", "content": ' + b"[" * 200 + b"]" * 200 + b"}]}", None),
    ],
)
async def test_bad_requests(bench: Bench, content: bytes, param: str | None) -> None:
    """400 in the API's shape with the field's name; the engine is not asked, nothing is recorded."""
    answer = await bench.http.post("/v1/chat/completions", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.json()["error"]["param"] == param
    assert bench.engine.requests == []
    assert bench.log.appended == []


async def test_limits_and_unknown_routes() -> None:
    """413 with and without a content-length, 405, 404: all in the API's shape."""
    async with bench_of(max_body_bytes=2048) as bench:
        assert (
            await bench.http.post("/v1/chat/completions", content=b"x" * 3000)
        ).status_code == 413

        async def pieces():
            for _ in range(4):
                yield b"x" * 1000

        assert (await bench.http.post("/v1/chat/completions", content=pieces())).json()["error"][
            "code"
        ] == "body_too_large"
        for body in (b"x" * 3000, pieces()):
            assert (await bench.http.post("/reef/scenarios", content=body)).json()["error"][
                "code"
            ] == "body_too_large"
        answer = await bench.http.get("/v1/chat/completions")
        assert (answer.status_code, answer.json()["error"]["type"]) == (
            405,
            "invalid_request_error",
        )
        for path in ("/v1/audio/speech", "/v1/files", "/nothing"):
            answer = await bench.http.post(path, json={})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_tokens(tmp_path: Path) -> None:
    """401 without or with a wrong token, 403 out of scope or scenario, `x-api-key` accepted."""

    def row(secret: str, scopes: str, scenarios: str = "null") -> str:
        return f"- {{sha256: {hashlib.sha256(secret.encode()).hexdigest()}, scopes: [{scopes}], scenarios: {scenarios}}}\n"

    path = tmp_path / "tokens.yaml"
    path.write_text(
        row("all", "admin")
        + row("app", "infer, report", "[default]")
        + row("eye", "read")
        + row("narrow", "read", "[default]")
    )
    async with bench_of(access=tokens.read(path)) as bench:

        async def chat(
            secret: str, scenario: str = "default", header: str = "authorization"
        ) -> int:
            value = f"Bearer {secret}" if header == "authorization" else secret
            return (await bench.chat(scenario, headers={header: value})).status_code

        async def get(secret: str, where: str) -> int:
            return (
                await bench.http.get(where, headers={"authorization": f"Bearer {secret}"})
            ).status_code

        bench.http.headers.clear()
        assert (
            await bench.http.post("/v1/chat/completions", json={"messages": CHAT})
        ).status_code == 401
        assert (await bench.http.get("/reef/scenarios")).status_code == 401
        assert [await chat("app"), await chat("app", header="x-api-key"), await chat("all")] == [
            200,
            200,
            200,
        ]
        assert [await chat("wrong"), await chat("app", "provider"), await chat("eye")] == [
            401,
            403,
            403,
        ]
        assert [
            await get("eye", "/reef/scenarios/default/releases"),
            await get("app", "/reef/scenarios/default/releases"),
        ] == [200, 403]
        assert [await get("app", "/v1/models"), await get("eye", "/healthz")] == [200, 200]
        bench.reads.rows["/records/rec-1"] = {
            "record": {"event_id": "rec-1", "scenario": "provider"}
        }
        assert [
            await get("eye", "/reef/records/rec-1"),
            await get("narrow", "/reef/records/rec-1"),
        ] == [200, 404]
        refused = await bench.http.post(
            "/reef/scenarios", json={"scenario": "x"}, headers={"authorization": "Bearer eye"}
        )
        assert refused.status_code == 403


def test_a_tokens_file_that_cannot_be_used(tmp_path: Path) -> None:
    """Refused with the row, never with the value; without tokens the gateway listens on loopback."""
    path = tmp_path / "tokens.yaml"
    path.write_text("- {sha256: secret-by-mistake, scopes: [infer]}\n")
    with pytest.raises(BadConfig) as error:
        tokens.read(path)
    assert "row 0.sha256: not the 64 digits that `printf" in str(error.value)
    assert "secret-by-mistake" not in str(error.value)
    for text, said in (
        ("- {scopes: [infer]}", "row 0.sha256: missing. A row is"),
        (f"- {{sha256: {'a' * 64}, scopes: []}}", "row 0.scopes: names no scope. A row is"),
        (
            f"- {{sha256: {'a' * 64}, scopes: [fly]}}",
            "tokens.yaml: row 0.scopes.0: a scope is 'infer', 'report', 'read' or 'admin'. A row is",
        ),
        (
            f"- {{sha256: {'a' * 64}, scopes: [read], scope: read}}",
            "row 0.scope: unknown key; there are sha256, scopes, ",
        ),
        ("tokens: 1", "the file: "),
        (
            "- {sha256: secret-by-mistake, scopes: [infer]}\n x",
            "is not valid YAML: line 2, column 2",
        ),
    ):
        path.write_text(text)
        with pytest.raises(BadConfig) as error:
            tokens.read(path)
        assert said in str(error.value)
        assert "secret-by-mistake" not in str(error.value)
    path.write_text("[]")
    with pytest.raises(BadConfig, match="no token"):
        tokens.read(path)
    assert address(Settings(host="0.0.0.0")) == "127.0.0.1"
    assert address(Settings(host="0.0.0.0", tokens_file=path)) == "0.0.0.0"


def test_settings_come_from_the_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """serve.yaml says, the environment overrides, a misspelt variable is refused."""
    path = tmp_path / "serve.yaml"
    path.write_text("reef: {recipe: 'a.b:C'}\ngateway: {port: 9100, implicit_scenarios: true}\n")
    system = SystemSettings(config=path)
    assert (Settings.read(system).port, Settings.read(system).implicit_scenarios) == (9100, True)
    monkeypatch.setenv("REEF_GATEWAY_PORT", "9200")
    monkeypatch.setenv("REEF_GATEWAY_URL", "http://x")
    assert Settings.read(system).port == 9200
    monkeypatch.setenv("REEF_GATEWAY_PROT", "1")
    with pytest.raises(BadConfig, match="REEF_GATEWAY_PROT"):
        Settings.read(system)


async def test_the_tail_of_events(bench: Bench) -> None:
    """What happens in a scenario comes as server-sent events while one listens."""
    async with (
        httpx.AsyncClient(base_url=bench.url, timeout=10) as http,
        http.stream("GET", "/reef/scenarios/default/events") as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == ": listening"
        bench.gateway.fanout.tell(published("default", 7))
        seen = [line async for line in _some(lines, 5)]
    assert "event: release.published.v1" in seen
    assert any('"release_id":"rel-default-7"' in line for line in seen)


async def _some(lines, count):
    for _ in range(count):
        yield await anext(lines)


async def test_damaged_heads_of_one_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one is not ready, with the reason; the others are served; once it is whole again, so is it. One that is in memory is served on."""
    whole = MemoryHeads.chain
    broken = {"slow", "default"}

    async def chain(self: MemoryHeads, scenario: str, *, limit: int = 100) -> list[Release]:
        if scenario in broken:
            raise Damaged("release 'r0' is damaged")
        return await whole(self, scenario, limit=limit)

    monkeypatch.setattr(MemoryHeads, "chain", chain)
    async with bench_of() as bench:
        for answer in (
            await bench.chat("default"),
            await bench.chat("slow"),
            await bench.http.get("/reef/scenarios/slow/contract"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                503,
                "scenario_not_ready",
            )
            assert "release 'r0' is damaged" in answer.text
        assert (await bench.chat("tools")).status_code == 200
        assert bench.commands.sent == [], "nothing is created in its place"
        assert (await bench.report("slow", references=["x"], score=1.0)).status_code != 404
        broken.clear()
        await bench.gateway.scenarios.snapshot()
        assert (await bench.chat("default")).status_code == 200
        broken.add("default")
        await bench.gateway.scenarios.snapshot()
        assert (await bench.chat("default")).status_code == 200
