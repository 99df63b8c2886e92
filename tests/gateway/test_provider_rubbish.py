"""A provider whose status is 200 and whose answer is none: the next entry is asked, before a byte is sent."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest

from .test_providers import THEIRS, engine_rows, provided

CHUNK = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\n'
STREAM = b"content-type: text/event-stream\r\n\r\n"
JSON = b"content-type: application/json\r\n\r\n"
WHOLE: dict[str, bytes] = {
    "page": b"content-type: text/html\r\n\r\n<html>parked</html>",
    "nothing": JSON,
    "no choices": JSON + b'{"id": "c", "choices": []}',
    "an error": JSON + b'{"error": {"message": "no credits", "code": 402}}',
    "no message": JSON + b'{"choices": [{"index": 0, "text": "Hi"}]}',
    "a list": JSON + b"[]",
    "half": JSON + b'{"choices": [{"ind',
    "stream of an error": STREAM
    + b'data: {"error": {"message": "overloaded"}}\n\ndata: [DONE]\n\n',
    "stream of pages": STREAM + b"data: <html>\n\n",
    "empty stream": STREAM,
    "stream of nothing": STREAM + b"data: [DONE]\n\n",
}


@contextlib.asynccontextmanager
async def saying(answer: bytes, pause_s: float = 0.0) -> AsyncIterator[str]:
    """URL of a server that sends this after its status line, byte by byte if there is a pause."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            whole = b"HTTP/1.1 200 OK\r\n" + answer
            for n in range(len(whole)) if pause_s else ():
                writer.write(whole[n : n + 1])
                await writer.drain()
                await asyncio.sleep(pause_s)
            writer.write(b"" if pause_s else whole)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", WHOLE)
async def test_the_next_is_asked_after_an_answer_that_is_none(tmp_path, kind, stream):
    async with (
        saying(WHOLE[kind]) as url,
        provided(tmp_path, "{upstreams: [theirs, served]}", url=url) as (bench, _),
    ):
        for _ in range(4):
            answer = await bench.chat(stream=stream)
            assert answer.status_code == 200, answer.text
            assert "Hello" in answer.text
            assert "x-reef-upstream" not in answer.headers
        row = next(row for row in await engine_rows(bench) if row.get("provider") == "theirs")
        assert (row["available"], row["in_flight"]) == (False, 0), "it is set apart for a while"
        assert "something else than an answer" in row["problem"]
        assert bench.log.records[-1].outcome == "ok"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_entrys_rubbish_is_an_error_that_names_it(tmp_path, stream):
    async with saying(WHOLE["page"]) as url, provided(tmp_path, THEIRS, url=url) as (bench, _):
        answer = await bench.chat(stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_invalid")
        assert "'theirs'" in answer.json()["error"]["message"]
        assert bench.log.records[-1].outcome == "failed"


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda text: text,
    "comment first": lambda text: b": waiting\n\n" + text,
    "carriage returns": lambda text: text.replace(b"\n", b"\r\n"),
    "no choice yet": lambda text: b'data: {"choices": [], "prompt_filter_results": []}\n\n' + text,
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_stream_is_relayed_whole_after_its_first_frame_was_looked_at(tmp_path, form):
    sent = FORMS[form](CHUNK + CHUNK + b"data: [DONE]\n\n")
    async with (
        saying(STREAM + sent) as url,
        provided(tmp_path, THEIRS, url=url) as (bench, _),
    ):
        answer = await bench.chat(stream=True)
        assert answer.text.count('"content":"Hi"') == 2
        assert answer.text.endswith("data: [DONE]\n\n")
        (record,) = bench.log.records
        assert record.response["choices"][0]["message"]["content"] == "HiHi"


@pytest.mark.parametrize("where", ["headers", "body", "frame"])
async def test_a_provider_that_drips_is_bounded_in_time(tmp_path, where):
    """Byte by byte it is never silent for long."""
    answer = {
        "headers": b"x: " + b"y" * 500,
        "body": JSON + b" " * 500,
        "frame": STREAM + b"data: " + b"y" * 500,
    }[where]
    async with (
        saying(answer, pause_s=0.01) as url,
        provided(tmp_path, "{upstreams: [theirs, served]}", url=url, more=", timeout_s: 0.4") as (
            bench,
            _,
        ),
    ):
        started = asyncio.get_running_loop().time()
        answered = await bench.chat(stream=where == "frame")
        assert answered.status_code == 200, answered.text
        assert "Hello" in answered.text
        assert asyncio.get_running_loop().time() - started < 3
        problem = next(row for row in await engine_rows(bench) if row.get("provider") == "theirs")
        assert json.dumps(problem["problem"]).count("answer") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["stop", None])
async def test_a_stream_without_a_terminator_is_whole_if_its_choices_ended(
    tmp_path, reason, stream
):
    last = {"choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": reason}]}
    sent = STREAM + CHUNK + b"data: " + json.dumps(last).encode() + b"\n\n"
    async with saying(sent) as url, provided(tmp_path, THEIRS, url=url) as (bench, _):
        answer = await bench.chat(stream=stream)
        (record,) = bench.log.records
    if reason is None:
        assert record.outcome == "upstream_incomplete"
        assert "upstream_incomplete" in answer.text
        return
    assert record.outcome == "ok"
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "Hi!"
