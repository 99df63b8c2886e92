"""Endpoints of `models:` that answer users: strict, away, limited, without an account."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from reefcommon.config import parse
from reefcommon.errors import BadConfig
from services.experience.domain.samples import untrainable
from services.gateway.domain.upstream_body import OPENAI
from services.gateway.upstream.providers import Provider
from services.gateway.upstream.upstreams import providers_of
from services.gateway.upstream.wire import Connection

from .conftest import CHAT, Bench, bench_of, serving
from .stub_engine import StubEngine

KEY = "sk-secret-0123456789"
SAO = "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}\n"


@dataclass
class StrictProvider:
    """An OpenAI endpoint that refuses what is not in the reference, as OpenAI does."""

    status: int = 200
    new_limit: bool = False
    key: str = ""  # if set, any other is refused
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        if self.key and self.keys[-1] != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "no such key"}}, 401)
        if self.status != 200:
            # Some repeat the key that they do not like.
            words = f"Incorrect API key provided: {KEY}. Rate limit, or none."
            headers = {"retry-after": "7"} if self.status == 429 else {}
            return JSONResponse({"error": {"message": words}}, self.status, headers)
        unknown = body.keys() - OPENAI["chat.completions"]
        if unknown:
            words = f"Unrecognized request argument supplied: {min(unknown)}"
            return JSONResponse({"error": {"message": words, "code": None}}, 400)
        if self.new_limit and "max_tokens" in body:
            error = {"message": "Unsupported", "code": "unsupported_parameter"}
            return JSONResponse({"error": {**error, "param": "max_tokens"}}, 400)
        head = {"id": "c", "model": body["model"], "system_fingerprint": "fp_theirs"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        message = {"role": "assistant", "content": "Theirs"}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return JSONResponse(
                {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            )
        chunks = [
            {**head, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**head, "choices": [], "usage": usage},
        ]
        frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return StreamingResponse(
            iter([*frames, "data: [DONE]\n\n"]), media_type="text/event-stream"
        )


@contextlib.asynccontextmanager
async def provided(
    tmp_path: Any, upstreams: str, *, url: str = "", more: str = "", **given: Any
) -> AsyncIterator[tuple[Bench, StrictProvider]]:
    """A gateway whose entry `theirs` is a strict provider; `away` is an endpoint that is closed."""
    strict = StrictProvider(**given)
    key_file = tmp_path / "key"
    key_file.write_text(KEY + "\n")
    async with serving(strict.app) as address:
        entry = f"{{url: '{url or address}/v1', model: gpt-x, key_file: '{key_file}'{more}}}"
        away = "{url: 'http://127.0.0.1:9/v1', model: none}"
        text = (
            f"{SAO}models: {{theirs: {entry}, away: {away}, served: {{}}}}\nserving: {upstreams}\n"
        )
        config = parse(text)
        providers = providers_of(config, connect_timeout_s=1.0, max_answer_bytes=1 << 20)
        async with bench_of(config=config, providers=providers) as bench:
            yield bench, strict
        for provider in providers.values():
            provider.close()


THEIRS = "{upstreams: [theirs]}"


async def test_a_strict_provider_gets_the_fields_that_it_knows_and_its_own_model(tmp_path):
    async with provided(tmp_path, THEIRS) as (bench, strict):
        answer = await bench.chat(top_k=5, priority=3, temperature=0.5, return_token_ids=True)
        assert answer.status_code == 200, answer.text
        assert strict.requests[-1] == {"model": "gpt-x", "messages": CHAT, "temperature": 0.5}
        assert strict.keys == [f"Bearer {KEY}"]
        body = answer.json()
        assert (body["model"], body["system_fingerprint"]) == ("reef", "fp_theirs")
        assert answer.headers["x-reef-upstream"] == "theirs"
        assert answer.headers["x-reef-left-out"].split(",") == [
            "top_k",
            "priority",
            "return_token_ids",
        ]
        assert bench.engine.requests == []


async def test_the_record_is_untrainable_and_says_why(tmp_path):
    async with provided(tmp_path, THEIRS) as (bench, strict):
        receipt = (await bench.chat()).headers["x-reef-agent-record-id"]
        streamed = await bench.openai().chat.completions.create(
            model="reef", messages=CHAT, stream=True, logprobs=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in streamed if c.choices])
        assert text == "Theirs"
        assert strict.requests[-1]["stream_options"] == {"include_usage": True}
        for record in bench.log.records:
            assert (record.model, record.outcome, record.usage.completion_tokens) == (
                "gpt-x",
                "ok",
                1,
            )
            assert (record.load_id, record.loads, record.release_id) == (None, {}, "rel-default-0")
            assert untrainable(record) == "no_tokens"
        assert bench.log.records[0].event_id == receipt


async def test_tokens_of_another_model_are_never_trained_on(tmp_path):
    """A vLLM of somebody else, whose client asks for token ids itself."""
    theirs, more = StubEngine(), ", speaks: vllm"
    async with (
        serving(theirs.app) as url,
        provided(tmp_path, THEIRS, url=url, more=more) as (bench, _),
    ):
        answer = await bench.chat(return_token_ids=True, logprobs=True, top_k=1)
        assert answer.json()["choices"][0]["token_ids"]
        assert theirs.requests[-1].keys() == {
            *("model", "messages", "return_token_ids", "logprobs", "top_k")
        }
        assert untrainable(bench.log.records[-1]) == "no_tokens"
        await bench.chat()
        assert theirs.requests[-1].keys() == {"model", "messages"}


async def test_the_next_is_asked_if_the_first_is_away_and_the_breaker_opens(tmp_path):
    async with provided(tmp_path, "{upstreams: [away, theirs, served]}") as (bench, strict):
        for _ in range(4):
            answer = await bench.chat()
            assert answer.headers["x-reef-upstream"] == "theirs"
        rows = {row.get("provider"): row for row in await engine_rows(bench)}
        assert rows["away"]["available"] is False
        assert "cannot be reached" in rows["away"]["problem"]
        assert rows["theirs"]["available"] is True
        strict.status = 500
        answer = await bench.chat()
        assert answer.status_code == 200
        assert "x-reef-upstream" not in answer.headers
        assert answer.json()["system_fingerprint"] == "rel-default-0"
        assert bench.log.records[-1].load_id is not None


async def engine_rows(bench: Bench) -> list[dict[str, Any]]:
    return (await bench.http.get("/reef/status")).json()["engines"]


async def test_each_scenario_has_an_order_of_its_own(tmp_path):
    async with provided(tmp_path, "{upstreams: {tools: [theirs]}}") as (bench, _):
        assert "x-reef-upstream" not in (await bench.chat()).headers
        assert (await bench.chat("tools")).headers["x-reef-upstream"] == "theirs"


@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_a_refused_account_is_said_plainly_without_the_key(tmp_path, status):
    async with provided(tmp_path, THEIRS, status=status) as (bench, _):
        answer = await bench.chat()
        assert answer.status_code == 502
        message = answer.json()["error"]["message"]
        assert f"({status})" in message
        assert "models.theirs" in message
        shown = [answer.text, str(answer.headers), json.dumps(await engine_rows(bench))]
        shown.append(bench.log.records[-1].model_dump_json())
        assert KEY not in "".join(shown)


async def test_a_key_that_was_replaced_is_read_again(tmp_path):
    async with provided(tmp_path, THEIRS, key=KEY) as (bench, strict):
        assert (await bench.chat()).status_code == 200
        strict.key = "sk-another"
        assert (await bench.chat()).status_code == 502
        (tmp_path / "key").unlink()
        assert (await bench.chat()).status_code == 502, "a file in the midst of its replacement"
        (tmp_path / "key").write_text("sk-another\n")
        answers = await asyncio.gather(*(bench.chat() for _ in range(4)))
        assert [answer.status_code for answer in answers] == [200] * 4
        told = len(strict.keys)
        assert (await bench.chat()).status_code == 200
        assert strict.keys[told:] == ["Bearer sk-another"]
        (row,) = [row for row in await engine_rows(bench) if row.get("provider") == "theirs"]
        assert row["problem"] == ""


async def test_a_limit_of_the_provider_is_relayed_with_its_wait_and_without_the_key(tmp_path):
    async with provided(tmp_path, THEIRS, status=429) as (bench, _):
        answer = await bench.chat()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert KEY not in answer.text + bench.log.records[-1].model_dump_json()


async def test_a_model_that_takes_max_completion_tokens_only_is_asked_so(tmp_path):
    async with provided(tmp_path, THEIRS, new_limit=True) as (bench, strict):
        for _ in range(2):
            assert (await bench.chat(max_tokens=4)).status_code == 200
        names = [
            sorted(set(body) & {"max_tokens", "max_completion_tokens"}) for body in strict.requests
        ]
        assert names == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


async def test_further_fields_and_fields_that_it_lacks_are_configured(tmp_path):
    more = ", also_knows: [top_k], lacks: [stream_options, user]"
    async with provided(tmp_path, THEIRS, more=more) as (bench, strict):
        answer = await bench.chat(top_k=5, user="u")
        assert answer.status_code == 400  # the strict one refuses it, and says so
        assert "top_k" in answer.json()["error"]["message"]
        assert strict.requests[-1].keys() == {"model", "messages", "top_k"}


@pytest.mark.parametrize(
    ("more", "gets"),
    [
        ("", set()),
        (", also_knows: [reasoning_content]", {"reasoning_content"}),
        (", speaks: vllm, lacks: [reasoning_content]", {"reasoning"}),
        (", speaks: vllm", {"reasoning", "reasoning_content"}),
    ],
)
async def test_thoughts_go_to_a_provider_that_knows_their_field(tmp_path, more, gets):
    thought = {"role": "assistant", "content": "Yes.", "reasoning": "hm"}
    messages = [*CHAT, thought, {"role": "user", "content": "Sure?"}]
    async with provided(tmp_path, THEIRS, more=more) as (bench, strict):
        answer = await bench.chat(messages=messages)
        assert answer.status_code == 200, answer.text
        sent = strict.requests[-1]["messages"]
        assert sent[-2] == {"role": "assistant", "content": "Yes.", **dict.fromkeys(gets, "hm")}
        left = set(answer.headers.get("x-reef-left-out", "").split(",")) - {""}
        assert left == {"reasoning", "reasoning_content"} - gets
        assert bench.log.records[-1].request["messages"] == messages


MAPPED = "{model_map: {gpt-4o-mini: [theirs, served]}}"


async def test_a_mapped_name_is_answered_and_listed_and_another_is_no_model(tmp_path):
    async with provided(tmp_path, MAPPED) as (bench, _):
        answer = await bench.chat(model="gpt-4o-mini")
        assert (answer.json()["model"], answer.headers["x-reef-upstream"]) == (
            "gpt-4o-mini",
            "theirs",
        )
        assert "x-reef-upstream" not in (await bench.chat()).headers
        listed = (await bench.http.get("/v1/models")).json()["data"]
        assert [row["id"] for row in listed] == ["reef", "gpt-4o-mini"]
        assert (await bench.http.get("/v1/models/gpt-4o-mini")).status_code == 200
        answer = await bench.chat(model="gpt-5")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_wrong_name_is_refused_in_the_clients_own_format(tmp_path):
    async with provided(tmp_path, MAPPED) as (bench, _):
        client = anthropic.AsyncAnthropic(base_url=bench.url, api_key="none", max_retries=0)
        words = [{"role": "user", "content": "Hi"}]
        made = await client.messages.create(model="gpt-4o-mini", max_tokens=8, messages=words)
        assert made.content[0].text == "Theirs"
        with pytest.raises(anthropic.NotFoundError) as error:
            await client.messages.create(model="claude-x", max_tokens=8, messages=words)
        assert error.value.body["error"]["type"] == "not_found_error"
        await client.close()


async def test_a_pinned_release_is_that_of_the_nodes(tmp_path):
    async with provided(tmp_path, "{upstreams: [theirs, served]}") as (bench, strict):
        answer = await bench.chat(headers={"x-reef-release-id": "rel-default-0"})
        assert answer.status_code == 200
        assert strict.requests == []


@pytest.mark.parametrize(
    ("serving", "says"),
    [
        ("{upstreams: [mine]}", "no entry 'mine' under `models:`; there: served"),
        ("{upstreams: []}", "at least one"),
        ("{upstreams: served}", "must be a list"),
        ("{model_map: {reef: [served]}}", "'reef' is the model"),
    ],
)
def test_a_wrong_order_is_refused_with_the_remedy(serving, says):
    with pytest.raises(BadConfig, match="serving") as error:
        parse(f"{SAO}serving: {serving}\n")
    assert says in str(error.value)


def test_a_key_that_cannot_be_read_ends_the_start(tmp_path):
    missing = tmp_path / "none"
    entry = f"{{url: 'http://h/v1', model: m, key_file: '{missing}'}}"
    config = parse(f"{SAO}models: {{far: {entry}}}\nserving: {{upstreams: [far]}}\n")
    with pytest.raises(BadConfig, match="key_file"):
        providers_of(config, connect_timeout_s=1.0, max_answer_bytes=1)


@pytest.mark.parametrize("status", [404, 405, 500])
async def test_requests_that_a_provider_cannot_answer_take_it_from_nobody(tmp_path, status):
    """A route that it lacks, or a request that it fails on, is no fault of the endpoint."""
    async with provided(tmp_path, THEIRS, status=status) as (bench, strict):
        for _ in range(4):
            assert (await bench.chat()).status_code >= 500
        strict.status = 200
        assert (await bench.chat()).status_code == 200


@dataclass
class EchoingProvider(StrictProvider):
    """Repeats the key that it was given, cut anywhere."""

    cut: int = 1

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        given = request.headers["authorization"]
        head = {"id": "c", "object": "chat.completion", "model": body["model"]}
        message = {"role": "assistant", "content": f"told {given}"}
        headers = {"x-debug-authorization": given}
        if not body.get("stream"):
            whole = {**head, "choices": [{"index": 0, "message": message, "debug": given}]}
            return JSONResponse(whole, headers=headers)
        error = json.dumps({"error": {"message": f"bad key {given}"}})
        chunk = {**head, "choices": [{"index": 0, "delta": message}]}
        text = f"data: {json.dumps(chunk)}\n\ndata: {error}\n\n".encode()

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(text), self.cut):
                yield text[start : start + self.cut]
                await asyncio.sleep(0)

        return StreamingResponse(pieces(), media_type="text/event-stream", headers=headers)


@pytest.mark.parametrize("cut", [0, 1, 7, 10_000])
async def test_no_answer_header_or_event_repeats_the_key(tmp_path, monkeypatch, cut):
    monkeypatch.setattr("tests.gateway.test_providers.StrictProvider", EchoingProvider)
    async with provided(tmp_path, THEIRS, cut=cut or 1) as (bench, _):
        answer = await bench.chat(stream=cut > 0)
        record = bench.log.records[-1].model_dump_json()
        assert "told Bearer ***" in answer.text
        assert "told Bearer ***" in record
        assert KEY not in answer.text + str(answer.headers) + record


async def test_a_client_that_goes_while_the_key_is_read_again_leaves_nothing(tmp_path, monkeypatch):
    asked: list[Provider] = []

    async def read_for_long(provider: Provider, _refused: bytes) -> bool:
        asked.append(provider)
        await asyncio.sleep(60)
        return True

    cut: list[int] = []

    def noted(connection: Connection) -> None:
        cut.append(connection.status)
        whole(connection)

    whole = Connection.cut
    monkeypatch.setattr(Provider, "_renewed", read_for_long)
    monkeypatch.setattr(Connection, "cut", noted)
    async with provided(tmp_path, THEIRS, key="sk-another") as (bench, _):
        request = asyncio.create_task(bench.chat())
        async with asyncio.timeout(5):
            while not asked:
                await asyncio.sleep(0.01)
            assert asked[0].node.in_flight == 1
            request.cancel()
            while asked[0].node.in_flight:
                await asyncio.sleep(0.01)
        assert cut == [401]
