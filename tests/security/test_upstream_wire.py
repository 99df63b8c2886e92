"""A serving node that breaks HTTP, or says things that are not for the client: on real sockets, byte by byte."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson
import pytest

from services.gateway import metrics
from services.gateway.upstream.answers import relayed
from services.gateway.upstream.engines import HttpEngines, without_credentials
from services.gateway.upstream.experience import ExperienceReads

from .conftest import CHAT, Edge, InstantEngines, edge_of

GOOD = InstantEngines.BODY
HEADS: list[bytes] = []
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def node(serve: Serve) -> AsyncIterator[str]:
    """A serving node that reads a request and then does as it likes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            HEADS.append(head)
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                ),
                0,
            )
            await reader.readexactly(length)
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def in_front_of(
    url: str, *, api_key: str = "", limit: int = 1024 * 1024, **settings: int
) -> AsyncIterator[Edge]:
    """A gateway before this node."""
    engines = HttpEngines(
        (url,), api_key=api_key, connect_timeout_s=10, read_timeout_s=30, max_answer_bytes=limit
    )
    try:
        async with edge_of(engines=engines, **settings) as edge:
            yield edge
            assert engines.nodes[0].in_flight == 0, "a slot was lost"
            assert edge.gateway.edge.memory.held == 0
            assert metrics.IN_FLIGHT._value.get() == 0
    finally:
        await engines.stop()


def says(*parts: bytes) -> Serve:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        await asyncio.sleep(0)

    return serve


def whole(
    body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json", more: bytes = b""
) -> bytes:
    return (
        b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n%b"
        % (status, kind, len(body), more, body)
    )


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
FRAME = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}'


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([whole(b"<html>busy</html>", kind=b"text/html")], 502),
        ([whole(b"\xff\xfe{}")], 502),
        ([whole(b"[]")], 502),
        ([whole(b"")], 502),
        ([whole(b'{"a": NaN}')], 502),
        ([whole(gzip.compress(GOOD), more=b"content-encoding: gzip\r\n")], 502),
        ([whole(GOOD, more=b"content-encoding: br\r\n")], 502),
        ([whole(GOOD, b"302 Found", more=b"location: http://169.254.169.254/latest\r\n")], 502),
        ([whole(GOOD, b"304 Not Modified")], 502),
        ([whole(GOOD, b"999 Odd")], 502),
        ([whole(GOOD, b"600 Odd")], 502),
        ([whole(GOOD)[:-20]], 502),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n{}"], 502),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}"], 502),
        ([CHUNKED + b"5\r\n{}"], 502),
        ([CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n"], 502),
        ([CHUNKED, *[b"10000\r\n" + b" " * 65536 + b"\r\n"] * 40], 502),
        ([b"not http at all\r\n\r\n"], 502),
        ([b""], 502),
        ([b"HTTP/1.1 200 OK\r\n", *[b"x-%d: y\r\n" % n for n in range(5000)]], 502),
        ([b"HTTP/1.1 200 OK\r\nx-long: ", *[b"y" * 8000] * 40], 502),
        ([whole(GOOD) + whole(b'{"a": "answer to a question that nobody asked"}')], 200),
        ([whole(b'{"error": {"message": "no"}}', b"400 Bad Request")], 400),
        ([whole(b"\xff\x00 not json", b"500 Oops", kind=b"text/plain")], 500),
        ([whole(GOOD)], 200),
    ],
)
async def test_unary_answers_on_the_wire(sent: list[bytes], status: int) -> None:
    """The engine's bytes or a clean 502, never a crash, a hang or a lost slot; what is no answer is `failed` with its reason."""
    async with node(says(*sent)) as url, in_front_of(url) as edge, asyncio.timeout(60):
        answer = await edge.http.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == status, answer.text
        assert "location" not in answer.headers
        assert "content-encoding" not in answer.headers
        (record,) = edge.log.records
        assert record.outcome == ("ok" if status == 200 else "failed")
        if status == 502:
            assert answer.json()["error"]["code"].startswith("upstream_")
            assert record.error


@pytest.mark.parametrize(
    ("sent", "outcome"),
    [
        ([STREAM, FRAME, b"\n\n", b"data: [DONE]\n\n"], "ok"),
        ([STREAM, FRAME.replace(b"hi", b"h\xc3"), b"\n\ndata: [DONE]\n\n"], "upstream_incomplete"),
        ([STREAM, FRAME, b"\r\n\r\ndata: [DONE]\r\n\r\n"], "ok"),
        ([STREAM, FRAME, b"\r\rdata: [DONE]\r\r"], "ok"),
        ([STREAM, FRAME, b"\n"], "upstream_incomplete"),
        ([STREAM, FRAME, b"\n\ndata: [DONE]"], "ok"),
        (
            [STREAM, b"event: x\nid: 5\nretry: 1\n", FRAME, b"\n\n: comment\n\ndata: [DONE]\n\n"],
            "ok",
        ),
        ([STREAM, b"data:\n\n", FRAME, b"\n\ndata: 5\n\ndata: [DONE]\n\ndata: more\n\n"], "ok"),
        ([STREAM, FRAME, b"\n\n", *[b"data: " + b"x" * 60000] * 40], "upstream_incomplete"),
        ([STREAM, *[b": ping\n\n" * 5000] * 60], "upstream_incomplete"),
        ([STREAM], "upstream_incomplete"),
        ([STREAM, b"<html>\n\n"], "upstream_incomplete"),
        (
            [
                STREAM.replace(b"event-stream", b"event-stream\r\ncontent-encoding: gzip"),
                gzip.compress(FRAME),
            ],
            "failed",
        ),
    ],
)
async def test_streams_on_the_wire(sent: list[bytes], outcome: str) -> None:
    """A stream that is no stream ends with an error event and without [DONE]."""
    async with (
        node(says(*sent)) as url,
        in_front_of(url, max_answer_bytes=1024 * 1024) as edge,
        asyncio.timeout(60),
    ):
        answer = await edge.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
        (record,) = edge.log.records
        assert record.outcome == outcome, answer.text[-300:]
        assert answer.status_code == (502 if outcome == "failed" else 200)
        assert ("[DONE]" in answer.text) is (outcome == "ok")


async def test_headers_of_a_node() -> None:
    """None in Reef's name, none of the connection's, none that cuts the head of the answer; the rest goes through."""
    more = b"x-reef-agent-record-id: forged\r\nX-Reef-Session-Id: forged\r\nset-cookie: a=b\r\nx-request-id: r-1\r\n"
    async with node(says(whole(GOOD, more=more))) as url, in_front_of(url) as edge:
        answer = await edge.http.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200
        assert answer.headers.get_list("x-reef-agent-record-id") == [edge.log.records[0].event_id]
        assert answer.headers["x-request-id"] == "r-1"
        assert not {"x-reef-session-id", "set-cookie"} & set(answer.headers)
    nasty = [
        (b"X-A", b"1\r\nset-cookie: x"),
        (b"x b", b"1"),
        (b"x-c", b"\x00"),
        (b"", b"1"),
        (b"x-d", b"\xe9"),
        (b"Keep-Alive", b"1"),
    ]
    assert relayed(nasty) == [(b"x-d", b"\xe9")]


async def test_reefs_own_credentials_stay_its_own() -> None:
    """A node that refuses Reef's key is 502, not the client's 401; one that repeats the key in its words is not relayed with it."""
    key = "sk-engine-key-8f3a"
    seen: list[bytes] = []

    async def repeat(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status = b"401 Unauthorized" if not seen else b"429 Too Many Requests"
        seen.append(status)
        writer.write(whole(orjson.dumps({"error": {"message": f"bad key {key}"}}), status))
        await writer.drain()

    async with node(repeat) as url, in_front_of(url, api_key=key) as edge:
        refused = await edge.http.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, "upstream_invalid")
        limited = await edge.http.post("/v1/chat/completions", json=CHAT)
        assert (limited.status_code, "bad key ***" in limited.text) == (429, True)
        assert (
            key
            not in refused.text
            + limited.text
            + b"".join(event for _, event, _ in edge.log.appended).decode()
        )


async def test_credentials_in_an_engines_url_are_used_and_shown_to_nobody() -> None:
    """They go to the node as basic authentication; status, events and logs name the URL without them."""
    async with (
        node(says(whole(GOOD))) as url,
        in_front_of(url.replace("http://", "http://user:hunter2@")) as edge,
    ):
        assert (await edge.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert b"authorization: basic dxnlcjpodw50zxiy" in HEADS[-1].lower()
        assert "hunter2" not in str(edge.engines.rows()) + edge.log.records[
            0
        ].model_dump_json() + str(await edge.engines.failure())
    assert without_credentials("http://h:1/p") == "http://h:1/p"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (CHUNKED, b"1000\r\n" + b" " * 4096 + b"\r\n"),
        (STREAM + FRAME + b"\n\n", b": ping\n\n" * 500),
        (b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n" * 500),
        (b"HTTP/1.1 200 OK\r\nx-a: ", b"y" * 4096),
        (b"HTTP/1.1 200 ", b"y" * 4096),
        (b"", b"HTTP/1.1 103 Early Hints\r\nx-a: b\r\n\r\n" * 100),
        (CHUNKED + b"0\r\nx-trailer: ", b"y" * 4096),
        (CHUNKED + b"0\r\n", b"x-a: b\r\n" * 500),
        (CHUNKED + b"5;extension=", b"y" * 4096),
    ],
    ids=[
        "body",
        "stream",
        "headers",
        "header",
        "reason",
        "interim",
        "trailer",
        "trailers",
        "extension",
    ],
)
async def test_a_node_that_never_stops(begin: bytes, piece: bytes) -> None:
    """Whatever it goes on with, it is cut off at a bound, and the client is told."""

    async def go_on(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()

    async with (
        node(go_on) as url,
        in_front_of(url, limit=200_000, max_answer_bytes=200_000) as edge,
        asyncio.timeout(60),
    ):
        answer = await edge.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
        (record,) = edge.log.records
        assert record.outcome in {"failed", "upstream_incomplete"}
        assert '"code":"upstream_' in answer.text


@pytest.mark.parametrize("name", [[1], {"a": 1}, None, 5, 1.5, "base"])
async def test_a_node_that_lists_odd_names(name: object) -> None:
    """It is polled for the life of the gateway, which must not end with it."""
    body = orjson.dumps({"data": [{"id": name}, {"id": "other"}]})
    async with node(
        says(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), body)
    ) as url:
        engines = HttpEngines((url,))
        await engines.poll()
        (row,) = engines.rows()
        assert "other" in row["models"]
        await engines.stop()


async def test_a_list_of_models_without_an_end() -> None:
    async def go_on(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" " * 1_000_000)
            await writer.drain()

    async with node(go_on) as url:
        engines = HttpEngines((url,))
        async with asyncio.timeout(4):  # well before the poll's own time is over
            await engines.poll()
        assert await engines.failure() is not None
        await engines.stop()
        await asyncio.sleep(0.05)  # the server sees its end


async def test_a_read_outlives_an_idle_connection_that_is_closed() -> None:
    """The server of the first answer reads the next request, and goes."""
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")

    async with node(serve) as url:
        reads = ExperienceReads(url)
        assert [await reads.get("/a") for _ in range(2)] == [(200, b"{}")] * 2
        assert requests == 2
        reads.stop()
        await asyncio.sleep(0.05)  # the server sees its end
