"""An endpoint that answers otherwise than the others: whose fault it is, and that no count goes wrong."""

import asyncio
import gzip
import re
from contextlib import asynccontextmanager

import pytest

from reefcommon.config_sections import ModelEndpoint
from reefcommon.errors import BadConfig, Poison, Unavailable
from reefcommon.recipe_context import ModelFailed
from reefkit.jobs.store import JobStore
from reefkit.recipes import endpoint as endpoints
from reefkit.recipes.endpoint import MAX_TOKENS_STATED, ModelAway
from reefkit.recipes.models import Caller, HostedModel, ModelPool, header_text
from reefkit.retry import RetryPolicy

MESSAGE = b'{"choices":[{"message":{"content":"ok"}}]%b}'
GOOD = MESSAGE % b""


def answer(body, status=200, headers=b""):
    head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n"
    return head % (status, len(body), headers) + body


def usage(prompt, completion):
    return answer(
        MESSAGE % b',"usage":{"prompt_tokens":%b,"completion_tokens":%b}' % (prompt, completion)
    )


@pytest.fixture(autouse=True)
def short_tries(monkeypatch):
    monkeypatch.setattr(endpoints, "TRIES", RetryPolicy(0.01, 0.02, 2))


@pytest.fixture
def store(tmp_path):
    made = JobStore(tmp_path / "ledger.sqlite")
    yield made
    made.close()


@asynccontextmanager
async def asked(store, raw, url="", key=True, **entry):
    """A model at an address that answers all requests with these bytes."""

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(rb"content-length: (\d+)", head, re.IGNORECASE):
            await reader.readexactly(int(length[1]))
        writer.write(raw)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    at = {"url": url or f"http://127.0.0.1:{port}/v1", "model": "m", "timeout_s": 20.0}
    pool = ModelPool(store, {"judge": ModelEndpoint(**at, **entry)})
    caller = Caller("b", "s", "unit" if key else "", asyncio.get_running_loop(), pool)
    yield HostedModel("judge", caller)
    await pool.close()
    server.close()


async def chat(model, **params):
    return await model.chat([{"role": "user", "content": "x"}], **{"purpose": "p"} | params)


@pytest.mark.parametrize(
    "raw",
    [
        answer(b"<html>log in</html>"),
        answer(b"", 301, b"location: https://elsewhere/\r\n"),
        answer(b"", 308, b"location: https://elsewhere/\r\n"),
        answer(b"no", 405),
        answer(b"who are you", 407),
        answer(b""),
        answer(b"[]"),
        answer(b"null"),
        answer(b"[" * 100_000),
        answer(GOOD.decode().encode("utf-16")),
        answer(GOOD[:-3]),
        answer(b"not gzip", headers=b"content-encoding: gzip\r\n"),
        answer(b'{"error":{"message":"overloaded"}}'),
        answer(b'{"choices":null}'),
        answer(b'{"choices":[]}'),
        answer(b'{"choices":["ok"]}'),
        answer(b'{"choices":{"message":1}}'),
        answer(b'{"choices":[{"message":"ok"}]}'),
        answer(b'{"choices":[{"message":{"content":"a"}},{"message":{"content":"b"}}]}'),
        b"\x00\x01 nonsense\r\n\r\n",
        b"",
    ],
)
async def test_an_endpoint_that_speaks_otherwise_counts_as_away(store, raw):
    async with asked(store, raw) as model:
        with pytest.raises(ModelAway, match="model judge"):
            await chat(model)
    (row,) = store.logged_calls("b", 9)
    assert row["outcome"] != "ok"
    assert store.used("judge").calls == 1


@pytest.mark.parametrize("status", [400, 410, 413, 422, 451])
async def test_a_request_that_is_refused_is_its_own_fault(store, status):
    async with asked(store, answer(b"too long", status)) as model:
        with pytest.raises(ModelFailed, match="refuses the request") as raised:
            await chat(model)
    assert not isinstance(raised.value, Unavailable)


@pytest.mark.parametrize("url", ["http://ünï☃.invalid/v1", "http://[::zz]/v1"])
async def test_an_address_that_cannot_be_asked_counts_as_away(store, url):
    async with asked(store, b"") as model:
        endpoint = model.caller.pool.endpoints["judge"]
        endpoint.entry = endpoint.entry.model_copy(update={"url": url})
        with pytest.raises(ModelAway):
            await chat(model)


@pytest.mark.parametrize(
    "url", ["http://h:99999/v1", "http://h:abc/v1", "http://h:-1/v1", "http://h:0"]
)
def test_an_address_without_a_port_is_refused(url):
    with pytest.raises(ValueError, match="must be of the form"):
        ModelEndpoint(url=url, model="m")


@pytest.mark.parametrize("key", ["a\nb", "ключ", "a b", "a\x00b", "a\x7f"])
@pytest.mark.parametrize("place", ["key_env", "key_file"])
def test_a_key_that_no_header_holds_is_refused(tmp_path, store, monkeypatch, key, place):
    if place == "key_env" and "\x00" not in key:
        monkeypatch.setenv("SOME_KEY", key)
        entry = {"key_env": "SOME_KEY"}
    else:
        (tmp_path / "key").write_text(key, encoding="utf-8")
        entry = {"key_file": tmp_path / "key"}
    with pytest.raises(BadConfig, match="holds no single key"):
        ModelPool(store, {"judge": ModelEndpoint(url="http://h/v1", model="m", **entry)})


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize(
    "stated",
    [
        (b"-1000000", b"-1"),
        (b"9" * 25, b"1"),
        (b'"many"', b"null"),
        (b"[1]", b"{}"),
        (b"%d" % (MAX_TOKENS_STATED + 1), b"-0.5"),
    ],
)
async def test_a_count_that_cannot_be_is_estimated(store, stated, key):
    """The answer is used: it was paid for."""
    async with asked(store, usage(*stated), key=key) as model:
        (reply,) = await chat(model)
    assert reply.text == "ok"
    used = store.used("judge")
    assert used.calls == 1
    assert 0 < used.prompt_tokens < 100
    assert 0 < used.completion_tokens < 200


async def test_an_answer_in_another_form_was_paid_for(store):
    raw = answer(b'{"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":7}}')
    async with asked(store, raw, key=False) as model:
        with pytest.raises(ModelAway):
            await chat(model)
    assert (store.used("judge").calls, store.used("judge").tokens) == (1, 77)


async def test_an_answer_that_unpacks_without_end_is_cut(store, monkeypatch):
    monkeypatch.setattr(endpoints, "MAX_ANSWER_BYTES", 1 << 20)
    raw = answer(gzip.compress(b" " * (4 << 20)), headers=b"content-encoding: gzip\r\n")
    async with asked(store, raw) as model:
        with pytest.raises(ModelFailed, match="without end"):
            await chat(model)


@pytest.mark.parametrize(
    "params", [{"temperature": float("nan")}, {"top_p": float("inf")}, {"stream": True}]
)
async def test_parameters_that_would_be_others_are_refused(store, params):
    async with asked(store, answer(GOOD)) as model:
        with pytest.raises(Poison, match=next(iter(params))):
            await chat(model, **params)
    assert store.used("judge").calls == 0


@pytest.mark.parametrize(
    ("purpose", "sent"),
    [("a\x00b\x7f\r\nc", "a b c"), ("\ud800", ""), (" Größe ", "Größe"), ("\u2028x\u202e", "x")],
)
def test_a_purpose_is_a_header(purpose, sent):
    assert header_text(purpose) == sent
