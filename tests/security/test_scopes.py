"""Who may do what: every route that there is, with every kind of token."""

import hmac
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI

from reefcommon.errors import BadConfig
from services.gateway.control.harness import INSTALL
from services.gateway.control.scopes import OPEN, declared
from services.gateway.domain import access
from services.gateway.domain.exchange import HOT
from services.gateway.edge import tokens as tokens_file

from .conftest import CHAT, Edge, bearer, edge_of, token

# Written down here a second time, on purpose: a new route, or another scope, is a decision that somebody has to make twice.
EXPECTED: dict[tuple[str, str], str | None] = {
    ("POST", "/v1/chat/completions"): "infer",
    ("POST", "/v1/completions"): "infer",
    ("POST", "/v1/embeddings"): "infer",
    ("POST", "/v1/messages"): "infer",
    ("POST", "/v1/messages/count_tokens"): "infer",
    ("POST", "/v1/responses"): "infer",
    ("GET", "/reef/harness"): "infer",
    ("GET", "/reef/harness/adapters"): "infer",
    ("GET", "/reef/harness/install"): "infer",
    ("GET", "/reef/harness/plan"): "infer",
    ("GET", "/reef/harness/releases"): "infer",
    ("GET", "/v1/models"): "infer",
    ("GET", "/v1/models/{model}"): "infer",
    ("POST", "/reef/report"): "report",
    ("POST", "/reef/harness/proposals"): "report",
    ("POST", "/reef/train"): "report",
    ("GET", "/reef/harness/proposals"): "read",
    ("GET", "/reef/harness/proposals/{proposal_id}"): "report",
    ("GET", "/reef/harness/steps/{name}"): "read",
    ("GET", "/reef/scenarios"): "read",
    ("GET", "/reef/scenarios/{scenario}/contract"): "read",
    ("GET", "/reef/scenarios/{scenario}/releases"): "read",
    ("GET", "/reef/scenarios/{scenario}/releases/{release_id}/contents/{kind}"): "read",
    ("GET", "/reef/scenarios/{scenario}/releases/{release_id}/contents/{kind}/{path}"): "read",
    ("GET", "/reef/scenarios/{scenario}/rejections"): "read",
    ("GET", "/reef/scenarios/{scenario}/events"): "read",
    ("GET", "/reef/scenarios/{scenario}/records"): "read",
    ("GET", "/reef/scenarios/{scenario}/sessions"): "read",
    ("GET", "/reef/scenarios/{scenario}/samples"): "read",
    ("GET", "/reef/scenarios/{scenario}/steps"): "read",
    ("GET", "/reef/scenarios/{scenario}/units"): "read",
    ("GET", "/reef/scenarios/{scenario}/recipes"): "read",
    ("GET", "/reef/scenarios/{scenario}/signals"): "read",
    ("GET", "/reef/records/{record_id}"): "read",
    ("GET", "/reef/status"): "read",
    ("GET", "/status"): "read",
    ("POST", "/reef/scenarios"): "admin",
    ("POST", "/reef/scenarios/{scenario}/rollback"): "admin",
    ("POST", "/reef/scenarios/{scenario}/promote"): "admin",
    ("POST", "/reef/scenarios/{scenario}/candidates"): "admin",
    ("POST", "/reef/scenarios/{scenario}/routing"): "admin",
    ("POST", "/reef/scenarios/{scenario}/hold"): "admin",
    ("POST", "/reef/scenarios/{scenario}/resume"): "admin",
    ("GET", "/reef/releases"): "read",
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/metrics"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/"): None,
    ("GET", "/docs"): None,
    ("GET", "/docs/{name}"): None,
}
RECEIPT = "rec-01a22f3e65a079ceb6c663e2561ca4c7-e836"
BODIES: dict[str, Any] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/messages": {**CHAT, "max_tokens": 1},
    "/v1/messages/count_tokens": CHAT,
    "/v1/responses": {"input": "Hi"},
    "/reef/report": {"score": 1, "references": [RECEIPT]},
    "/reef/harness/proposals": {"mutations": [{"op": "remove", "id": "r"}]},
    "/reef/train": {"text": "Be brief."},
    "/reef/scenarios": {"scenario": "mine"},
    "/reef/scenarios/{scenario}/rollback": {"release_id": "rel-mine-0"},
    "/reef/scenarios/{scenario}/promote": {"release_id": "rel-mine-0"},
    "/reef/scenarios/{scenario}/candidates": {"kind": "solution", "files": {"a.py": "eA=="}},
    "/reef/scenarios/{scenario}/routing": {"shares": {"rel-mine-0": 0.1}},
    "/reef/scenarios/{scenario}/hold": {"reason": "a while"},
    "/reef/scenarios/{scenario}/resume": {},
}
ALL_SCOPES = ("infer", "report", "read", "admin")


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    """Tokens of every kind: `<scope>`, and `<scope>-elsewhere` which is good for another scenario only."""
    rows = [token(scope, scope) for scope in ALL_SCOPES]
    rows += [token(f"{scope}-elsewhere", scope, scenarios=("elsewhere",)) for scope in ALL_SCOPES]
    async with edge_of(*rows) as made:
        made.gateway.fanout.close()  # a live tail ends at once
        made.reads.rows |= {
            f"/scenarios/mine/{kind}": {"data": []}
            for kind in ("records", "sessions", "samples", "steps")
        }
        made.reads.rows["/records/rec-1"] = {"record": {"event_id": "rec-1", "scenario": "mine"}}
        yield made


async def ask(edge: Edge, method: str, path: str, secret: str | None) -> Any:
    names = {"release_id": "rel-mine-0", "kind": "harness", "path": "harness.json"}
    names["proposal_id"] = "prp-" + "0" * 32
    url = path.format(
        scenario="mine", record_id="rec-1", model="reef", name="swagger-ui.css", **names
    )
    headers = {"x-reef-scenario": "mine", **(bearer(secret) if secret else {})}
    answer = await edge.http.request(
        method, url, json=BODIES.get(path) if method == "POST" else None, headers=headers
    )
    assert answer.status_code != 500, answer.text
    return answer


def routes_of(edge: Edge) -> dict[tuple[str, str], str | None]:
    control: Any = edge.gateway.edge.control
    found = declared(control.routes)
    assert {path for _, path in found} >= HOT
    return found


async def test_every_route_declares_the_scope_that_is_written_down_here(edge: Edge) -> None:
    """A route that is new, or that asks for something else, fails here."""
    assert routes_of(edge) == EXPECTED
    assert {path for (_, path), scope in EXPECTED.items() if scope is None} == set(OPEN)
    document = (await edge.http.get("/openapi.json")).json()
    described = {
        (method.upper(), path): row["x-reef-scope"]
        for path, rows in document["paths"].items()
        for method, row in rows.items()
    }
    assert described == {key: scope for key, scope in EXPECTED.items() if scope is not None}


def test_a_route_without_a_scope_keeps_the_gateway_from_starting() -> None:
    """It is refused where it is declared, not found open later."""
    app = FastAPI(docs_url=None, redoc_url=None)

    @app.get("/new")
    async def new() -> None: ...

    with pytest.raises(TypeError, match="/new declares no scope"):
        declared(app.routes)


@pytest.mark.parametrize(
    ("method", "path"), [key for key in EXPECTED if key[1] != INSTALL], ids=lambda value: value
)
async def test_a_route_with_every_kind_of_token(edge: Edge, method: str, path: str) -> None:
    """401 without a good token, 403 without the scope; `admin` includes the others; a scenario of somebody else's stays hidden."""
    scope = EXPECTED[method, path]
    for secret in (None, "wrong", ""):
        answer = await ask(edge, method, path, secret)
        assert (answer.status_code == 401) is (scope is not None), (secret, answer.text)
        if scope is not None:
            assert answer.headers["www-authenticate"] == "Bearer"
    for secret in ALL_SCOPES:
        answer = await ask(edge, method, path, secret)
        allowed = scope in {None, secret} or secret == "admin"
        if not allowed:
            assert answer.status_code == 403, secret
            assert code_of(answer) in ("missing_scope", "permission_error")
        else:
            assert answer.status_code not in {401, 403}, (secret, answer.text)
    if scope is not None:
        refused = await ask(edge, method, path, f"{scope}-elsewhere")
        SEEN_FROM_ELSEWHERE.get(path if method == "GET" else f"{method} {path}", forbidden)(refused)


async def test_an_installation_is_refused_by_a_script(edge: Edge) -> None:
    for secret, said in (
        (None, "401"), ("report", "403"), ("infer-elsewhere", "403"), ("infer", "#!/bin/sh"),
    ):  # fmt: skip
        answer = await ask(edge, "GET", INSTALL, secret)
        assert said in answer.text
        assert answer.text.startswith("#!/bin/sh\n{") is (secret != "infer")


def code_of(answer: Any) -> str:
    """The code of a refusal; of Anthropic's shape its type."""
    error = answer.json()["error"]
    found: str = error.get("code") or error["type"]
    return found


def forbidden(answer: Any) -> None:
    assert answer.status_code == 403
    assert code_of(answer) in ("scenario_not_allowed", "permission_error")


def hidden(answer: Any) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "record_not_found")


def nothing_of_it(answer: Any) -> None:
    assert answer.status_code == 200
    assert "mine" not in answer.text


SEEN_FROM_ELSEWHERE: dict[str, Any] = {
    "/reef/records/{record_id}": hidden,
    "/reef/scenarios": nothing_of_it,
    "/reef/releases": nothing_of_it,
    "/reef/status": nothing_of_it,
    "/status": nothing_of_it,
    "/v1/models": nothing_of_it,
    "/reef/harness/adapters": nothing_of_it,
    "/v1/models/{model}": nothing_of_it,
}


async def test_a_record_of_no_known_scenario_is_shown_to_nobody_with_limits(edge: Edge) -> None:
    """An answer that does not say whose record it is counts as somebody else's."""
    edge.reads.rows["/records/rec-2"] = {"record": {"event_id": "rec-2"}}
    assert (
        await edge.http.get("/reef/records/rec-2", headers=bearer("read-elsewhere"))
    ).status_code == 404
    assert (await edge.http.get("/reef/records/rec-2", headers=bearer("read"))).status_code == 200


async def test_reasons_are_for_those_who_may_read(edge: Edge) -> None:
    """`/readyz` tells everybody whether, and those who may read why."""

    async def failing() -> str:
        return "the broker at 10.0.0.7 does not answer"

    edge.gateway.health.checks["log"] = failing
    assert "10.0.0.7" not in (await edge.http.get("/readyz")).text
    assert "10.0.0.7" not in (await edge.http.get("/readyz", headers=bearer("infer"))).text
    assert "10.0.0.7" not in (await edge.http.get("/readyz", headers=bearer("read-elsewhere"))).text
    answer = await edge.http.get("/readyz", headers=bearer("read"))
    assert (answer.status_code, "10.0.0.7" in answer.text) == (503, True)


async def test_every_token_is_compared_in_constant_time(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests, by `hmac.compare_digest`, all of them whichever matches: neither the place nor the length of what matches takes less time."""
    seen: list[tuple[str, str]] = []

    def counting(one: str, other: str) -> bool:
        seen.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(
        access, "hmac", type("Counting", (), {"compare_digest": staticmethod(counting)})
    )
    for secret in ("infer", "admin-elsewhere", "wrong", "x" * 5000):
        seen.clear()
        await edge.http.get("/v1/models", headers=bearer(secret))
        assert len(seen) == 2 * len(ALL_SCOPES)
        assert {len(part) for pair in seen for part in pair} == {64}


async def test_odd_ways_to_send_a_token(edge: Edge) -> None:
    """What is no bearer token is none; of two scenarios none is guessed."""
    odd = [
        b"infer",
        b"Basic aW5mZXI=",
        b"Bearer",
        b"Bearer ",
        b"Bearer\tinfer",
        b"Bearer infer extra",
        b"Bearer inf\xe9r",
        b"Bearer " + b"9" * 9000,
    ]
    for value in odd:
        assert (
            await edge.http.get("/v1/models", headers=[(b"authorization", value)])
        ).status_code == 401, value
    for name, value in (
        (b"authorization", b"bearer  infer "),
        (b"authorization", b"BEARER infer"),
        (b"x-api-key", b"infer"),
    ):
        assert (await edge.http.get("/v1/models", headers=[(name, value)])).status_code == 200
    twice = [
        (b"x-reef-scenario", b"elsewhere"),
        (b"x-reef-scenario", b"mine"),
        (b"authorization", b"Bearer infer-elsewhere"),
    ]
    assert (
        await edge.http.post("/v1/chat/completions", json=CHAT, headers=twice)
    ).status_code == 400
    assert edge.engines.asked == []


def test_the_same_token_twice_in_the_file(tmp_path: Any) -> None:
    """Refused at the start: which row counts would be luck."""
    row = f"- {{sha256: {'0' * 64}, scopes: [infer]}}\n"
    (tmp_path / "tokens.yaml").write_text(row + row.replace("infer", "admin"))
    with pytest.raises(BadConfig, match="twice"):
        tokens_file.read(tmp_path / "tokens.yaml")
