"""Nasty values in every field that names something: nothing is read, fetched, or put into a header because of them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from reefkit.bodies import FilesystemBodies
from services.gateway.domain.errors import ApiError
from services.gateway.domain.report import check_scenario
from services.gateway.upstream.experience import ExperienceReads
from tests.gateway.conftest import serving

from .conftest import CHAT, Edge, edge_of
from .test_scopes import RECEIPT

NASTY = [
    "../", "..", "../../etc/passwd", "%2e%2e%2f", "..%2f..%2fetc", "..\\..\\x", "/etc/passwd", "//evil.example", "a/../../b", ".", ".hidden",
    "http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "gopher://x", "a\x00b", "a\nb", "a\r\nset-cookie: x=1", "a\tb", "a b", " ", "",
    "é", "\u202e", "\ufeffx", "💥", "a;b", "a|b", "$(id)", "`id`", "${jndi:ldap://x}", "{{7*7}}", "<script>", "' OR 1=1 --", "x" * 5000, "default\n",
    "DEFAULT", "-x", "*", "?x=1", "#x", "null", "0x10", "[]", "reef:key:x",
]  # fmt: skip
NAMES = {"null", "0x10"}  # scenarios may be called so
RECEIPTS = {*NAMES, "DEFAULT", "reef:key:x"}  # and receipts so


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with edge_of() as made:
        made.gateway.fanout.close()
        yield made


def clean(answer: Any, value: str) -> None:
    """A refusal in the API's shape, or nothing found; nothing of the value in a header."""
    assert answer.status_code in {400, 403, 404, 405, 409, 414, 431}, (value, answer.text)
    assert set(answer.headers) <= {"content-type", "content-length", "retry-after", "allow"}
    if answer.headers["content-type"] == "application/json":
        assert answer.json()["error"]["message"]
        assert len(answer.content) < 2000


async def test_names_in_paths(edge: Edge) -> None:
    """Scenarios and receipts in a path: refused, or not found; the experience service is asked for nothing but what was named."""
    for value in NASTY:
        name = quote(value, safe="").replace(".", "%2E")  # else the client itself takes `..` out
        for pattern in (
            "records",
            "sessions",
            "samples",
            "steps",
            "releases",
            "contract",
            "rejections",
            "events",
        ):
            clean(await edge.http.get(f"/reef/scenarios/{name}/{pattern}"), value)
        for command in ("rollback", "promote"):
            clean(
                await edge.http.post(
                    f"/reef/scenarios/{name}/{command}", json={"release_id": "rel-1"}
                ),
                value,
            )
        clean(await edge.http.get(f"/reef/records/{name}"), value)
        clean(await edge.http.get(f"/v1/models/{name}"), value) if value else None
    assert {path for path, _ in edge.reads.asked} == {f"/records/{value}" for value in RECEIPTS}


async def test_values_in_headers(edge: Edge) -> None:
    """Scenario, release, receipt, tags, trace: refused, or kept as the text that it is; none reaches a header of the answer unseen."""
    for value in NASTY:
        raw = value.encode()
        for header in (b"x-reef-scenario", b"x-reef-release-id", b"x-reef-agent-record-id"):
            answer = await edge.http.post(
                "/v1/chat/completions", json=CHAT, headers=[(header, raw)]
            )
            if value in RECEIPTS and header == b"x-reef-agent-record-id":
                assert answer.headers["x-reef-agent-record-id"] == value
            else:
                clean(answer, value)
        for header in (
            b"x-reef-tag-session",
            b"x-reef-tag-client",
            b"session_id",
            b"traceparent",
            b"x-reef-capture",
        ):
            answer = await edge.http.post(
                "/v1/chat/completions", json=CHAT, headers=[(header, raw)]
            )
            if answer.status_code != 200:
                clean(answer, value)
                continue
            sent = dict(answer.headers.raw)
            assert sent.get(b"x-reef-session-id", raw) == raw
            assert not any(
                byte < 32 and byte != 9 for pair in sent.items() for part in pair for byte in part
            ), value
    assert [
        record.event_id for record in edge.log.records if not record.event_id.startswith("rec-")
    ] == [n for n in NASTY if n in RECEIPTS]
    assert edge.gateway.edge.memory.held == 0


async def test_values_in_bodies_and_queries(edge: Edge) -> None:
    """References, keys, names, release ids, cursors and filters: refused by name, or handed on as one value of one parameter."""
    edge.reads.rows["/scenarios/mine/records"] = {"data": []}
    for value in NASTY:
        unknown = await edge.http.post("/reef/report", json={"score": 1, "references": [value]})
        assert unknown.status_code == 400, value
        body = {"score": 1, "references": [RECEIPT], "agent_record_id": value}
        answer = await edge.http.post("/reef/report", json=body)
        assert answer.status_code == (202 if value in RECEIPTS else 400), value
        if value not in NAMES:
            clean(await edge.http.post("/reef/scenarios", json={"scenario": value}), value)
        clean(
            await edge.http.post("/reef/scenarios/mine/rollback", json={"release_id": value}), value
        )
        edge.reads.asked.clear()
        answer = await edge.http.get(
            "/reef/scenarios/mine/records", params={"session": value, "cursor": value}
        )
        if len(value) <= 256:
            assert answer.status_code == 200
            assert edge.reads.asked == [
                ("/scenarios/mine/records", {"session": value, "cursor": value, "limit": "50"})
            ]
        else:
            clean(answer, value)


async def test_what_a_client_names_is_never_fetched(edge: Edge) -> None:
    """Addresses in messages, tools and metadata go on as text: the engine's own settings say what it may fetch, the gateway fetches nothing."""
    content = [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
        {"type": "text", "text": "file:///etc/passwd"},
    ]
    answer = await edge.http.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]}
    )
    assert answer.status_code == 200
    asked = edge.engines.asked[0]
    assert b"169.254.169.254" in asked.upstream
    assert asked.path == "/v1/chat/completions"


async def test_a_query_is_encoded_and_a_redirect_is_not_followed() -> None:
    """A value stays one value on its way to the experience service; an answer that points elsewhere is an answer."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, RedirectResponse
    from starlette.routing import Route

    seen: list[dict[str, str]] = []

    async def rows(request: Request) -> Any:
        seen.append(dict(request.query_params))
        return (
            RedirectResponse("http://169.254.169.254/")
            if request.query_params.get("session") == "away"
            else JSONResponse({})
        )

    async with serving(Starlette(routes=[Route("/scenarios/s/records", rows)])) as url:
        reads = ExperienceReads(url)
        for value in (text for text in NASTY if "\x00" not in text):
            assert (await reads.get("/scenarios/s/records", {"session": value}))[0] == 200
            assert seen[-1] == {"session": value}
        assert (await reads.get("/scenarios/s/records", {"session": "away"}))[0] == 307
        reads.stop()


async def test_a_body_lies_under_its_digest_alone(tmp_path: Path) -> None:
    """No name of a client's is a file's name."""
    claim = await FilesystemBodies(tmp_path / "bodies").keep(b"../../etc/passwd")
    (kept,) = (tmp_path / "bodies").iterdir()
    assert (kept.name, claim.uri) == (claim.sha256, kept.as_uri())


def test_scenario_names() -> None:
    """Whatever could be a path, an address or a key is no name."""
    for value in NASTY:
        if value in NAMES:
            assert check_scenario(value) == value
            continue
        with pytest.raises(ApiError):
            check_scenario(value)
