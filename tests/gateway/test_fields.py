"""Flags that Reef reads or overwrites: refused exactly where the engine would refuse them, taken as it takes them."""

import base64
import hashlib
import re
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from services.engine.routes.schemas import ChatRequest, CompletionRequest
from services.gateway.domain.errors import ApiError
from services.gateway.domain.exchange import Api, asked_of, parse

from .conftest import CHAT, Bench

VALUES = [
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    1.0,
    0.5,
    1e9,
    "",
    "x",
    "true",
    "FALSE",
    "1",
    "on",
    "2",
    [],
    {},
    [True],
]
FLAGS: list[tuple[Api, str]] = [
    ("chat.completions", "stream"),
    ("chat.completions", "logprobs"),
    ("chat.completions", "return_token_ids"),
    ("chat.completions", "stream_options.include_usage"),
    ("completions", "stream"),
    ("completions", "return_token_ids"),
]
RELAYED = (
    "n",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_logprobs",
    "seed",
    "stop",
    "tools",
    "response_format",
    "user",
)


def body_of(api: Api, field: str, value: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": CHAT} if api == "chat.completions" else {"prompt": "Hi"}
    outer, _, inner = field.partition(".")
    return {
        **body,
        outer: {inner: value} if inner else value,
        **({"stream": True} if inner else {}),
    }


@pytest.mark.parametrize(("api", "field"), FLAGS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_flags_are_read_as_the_engine_reads_them(api: Api, field: str, value: Any) -> None:
    """`"x"` is 400 that names the field; `1` and `"true"` are true, since the engine streams on them too."""
    body = body_of(api, field, value)
    try:
        engine = (ChatRequest if api == "chat.completions" else CompletionRequest).model_validate(
            body
        )
    except ValidationError:
        if not (field == "stream_options.include_usage" and value is None):  # vLLM takes null here
            with pytest.raises(ApiError) as refused:
                asked_of(api, parse(api, orjson.dumps(body)))
            assert (refused.value.status, refused.value.param) == (400, field)
        return
    asked = asked_of(api, parse(api, orjson.dumps(body)))
    assert asked.stream is bool(engine.stream)
    assert asked.token_ids is bool(engine.return_token_ids)
    if isinstance(engine, ChatRequest):
        assert asked.logprobs is bool(engine.logprobs)
    assert asked.usage is bool(engine.stream_options and engine.stream_options.include_usage)


@pytest.mark.parametrize("field", RELAYED)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_reef_does_not_touch_is_the_engines_to_refuse(field: str, value: Any) -> None:
    """The gateway refuses none of it: the engine gets it as it was sent."""
    body = body_of("chat.completions", field, value)
    assert (
        asked_of("chat.completions", parse("chat.completions", orjson.dumps(body))).stream is False
    )


@pytest.mark.parametrize("stream", [1, "true", True])
async def test_a_stream_that_was_asked_for_in_odd_ways_has_its_usage(
    bench: Bench, stream: Any
) -> None:
    """The record has the engine's own count; the client, who did not ask for it, does not see it."""
    answer = await bench.chat(stream=stream)
    assert answer.text.endswith("data: [DONE]\n\n")
    (record,) = bench.log.records
    assert record.usage is not None
    assert (record.usage.completion_tokens, record.usage.estimated) == (3, False)
    assert "completion_tokens" not in answer.text


@pytest.mark.parametrize("logprobs", [1, "yes"])
async def test_odd_flags_of_the_client_stay_its_own(bench: Bench, logprobs: Any) -> None:
    """Who asks with `1` gets what who asks with `true` gets."""
    answer = (await bench.chat(logprobs=logprobs, return_token_ids=logprobs)).json()
    assert len(answer["choices"][0]["logprobs"]["content"]) == 3
    assert answer["choices"][0]["token_ids"] == [10, 11, 12]
    assert bench.engine.requests[0]["logprobs"] == logprobs


@pytest.mark.parametrize(
    ("api", "body", "wrong"),
    [
        ("completions", {}, "prompt"),
        ("completions", {"prompt": None}, "prompt"),
        ("completions", {"prompt": 5}, "prompt"),
        ("completions", {"prompt": None, "prompt_embeds": "AA=="}, None),
        ("completions", {"prompt": "Hi", "prompt_embeds": {}}, "prompt_embeds"),
        ("embeddings", {}, "input"),
        ("embeddings", {"input": {}}, "input"),
        ("embeddings", {"input": ["a", "b"]}, None),
        ("embeddings", {"messages": CHAT}, None),
        ("embeddings", {"messages": []}, "messages"),
        ("embeddings", {"messages": CHAT, "input": 5}, "input"),
    ],
)
def test_a_request_without_a_text(api: Api, body: dict[str, Any], wrong: str | None) -> None:
    """As vLLM has it: a prompt, or embeddings of one; an input, or a conversation. Otherwise the field is named."""
    if wrong is None:
        assert parse(api, orjson.dumps(body)) == body
        return
    with pytest.raises(ApiError) as refused:
        parse(api, orjson.dumps(body))
    assert (refused.value.status, refused.value.param) == (400, wrong)


async def test_control_routes_say_what_is_wrong_with_a_body(bench: Bench) -> None:
    """JSON that is none is called so, with the place; a field by its name. Reads of a scenario that is not there are 404."""
    broken = (
        await bench.http.post(
            "/reef/scenarios",
            content=b'{"scenario": ',
            headers={"content-type": "application/json"},
        )
    ).json()["error"]
    assert broken["message"].startswith("The request body is not valid JSON: ")
    assert "at character" in broken["message"]
    assert broken["param"] is None
    for sent in ({"content": b'{"scenario": "a"}'}, {"json": [1]}, {}):
        odd = (await bench.http.post("/reef/scenarios", **sent)).json()["error"]
        assert (
            odd["message"]
            == "The request body must be a JSON object with `content-type: application/json`."
        )
    unknown = (await bench.http.post("/reef/scenarios", json={"scenario": "a", "extra": 1})).json()[
        "error"
    ]
    assert unknown["param"] == "extra"
    for path, field in (("reef/scenarios", "scenario"), ("reef/report", "references")):
        missing = (await bench.http.post("/" + path, json={})).json()["error"]
        assert (missing["message"], missing["param"]) == (f"The field {field!r} is missing.", field)
    for kind in ("records", "sessions", "samples", "steps", "rejections", "contract", "releases"):
        answer = await bench.http.get(f"/reef/scenarios/nope/{kind}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            404,
            "scenario_not_found",
        ), kind
    assert bench.reads.asked == []
    docs = await bench.http.get("/docs")
    policy = docs.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    for source in re.findall(r'(?:src|href)="([^"]+)"', docs.text):
        asset = await bench.http.get(f"/{source}")
        assert (asset.status_code, "//" in source) == (200, False), source
        assert asset.headers["x-content-type-options"] == "nosniff"
    (script,) = re.findall(r"<script>(.*?)</script>", docs.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}'" in policy
    assert "unsafe-inline'" not in policy.split("style-src")[0]
    for name in ("redoc.standalone.js", "..%2Fcore.py", "nothing"):
        assert (await bench.http.get(f"/docs/{name}")).status_code == 404
