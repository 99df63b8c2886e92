"""What OpenAI's own client sees: chat, streams, tools, log-probabilities, errors."""

import json

import httpx
import openai
import pytest

from tests.engine.conftest import CHAT, serving
from tests.engine.scripted import ScriptedModel

pytestmark = pytest.mark.engine
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def client_of(node):
    return openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def client(node):
    with client_of(node) as client:
        yield client


@pytest.fixture(scope="module")
def scripted(tiny_path):
    """A node whose answers are given by `say`."""
    model = ScriptedModel(tiny_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.engine.app.load_model", lambda _path, _threads: model)
        with serving(tiny_path) as node:
            yield model, node


@pytest.fixture
def say(scripted):
    model, node = scripted

    def script(text):
        model.script = node.engine.tokenizer.encode(text)
        return node

    with client_of(node) as client:
        script.client = client
        yield script


def test_chat(client):
    answer = client.chat.completions.create(model="base", messages=CHAT, max_tokens=8, seed=1)
    assert answer.object == "chat.completion"
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model_extra["weight_version"] == "base"


def test_max_completion_tokens_wins(client):
    answer = client.chat.completions.create(
        model="base",
        messages=CHAT,
        max_tokens=3,
        max_completion_tokens=5,
        seed=1,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage.completion_tokens == 5


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_joins_to_the_whole_answer(client, n):
    fields = {
        "model": "base",
        "messages": CHAT,
        "max_tokens": 40,
        "seed": 4,
        "n": n,
        "logprobs": True,
        "top_logprobs": 2,
    }
    extra = {"return_token_ids": True}
    whole = client.chat.completions.create(**fields, extra_body=extra)
    chunks = list(
        client.chat.completions.create(
            **fields, extra_body=extra, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].model_extra["prompt_token_ids"] == whole.model_extra["prompt_token_ids"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert parts[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [
            i for part in parts for i in part.model_extra.get("token_ids", [])
        ] == choice.model_extra["token_ids"]
        entries = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
        assert [entry.logprob for entry in entries] == pytest.approx(
            [e.logprob for e in choice.logprobs.content], abs=1e-4
        )
        assert [part.finish_reason for part in parts if part.finish_reason] == [
            choice.finish_reason
        ]


def test_logprobs(client):
    answer = client.chat.completions.create(
        model="base", messages=CHAT, max_tokens=6, temperature=0, logprobs=True, top_logprobs=4
    )
    for entry in answer.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 4
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob == values[0], "greedy takes the best"
        assert len(entry.bytes) >= 1
    assert (
        client.chat.completions.create(model="base", messages=CHAT, max_tokens=2)
        .choices[0]
        .logprobs
        is None
    )


def test_stop_string_over_a_token_border(say):
    say("one two three four")
    whole = say.client.chat.completions.create(
        model="base", messages=CHAT, stop=["o th"], extra_body={"return_token_ids": True}
    )
    assert whole.choices[0].message.content == "one tw"
    assert whole.choices[0].model_extra["stop_reason"] == "o th"
    assert len(whole.choices[0].model_extra["token_ids"]) == len("one two th"), (
        "ids are what was sampled, the text is shorter"
    )
    chunks = list(
        say.client.chat.completions.create(
            model="base", messages=CHAT, stop=["o th", "zzz"], stream=True
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one tw"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_answer_ends_with_eos_in_the_ids_and_not_in_the_text(say):
    say("héllo ✓")
    answer = say.client.chat.completions.create(
        model="base", messages=CHAT, logprobs=True, extra_body={"return_token_ids": True}
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("héllo ✓", "stop")
    assert choice.model_extra["token_ids"][-1] == 258
    assert len(choice.logprobs.content) == len(choice.model_extra["token_ids"])
    chunks = list(say.client.chat.completions.create(model="base", messages=CHAT, stream=True))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert pieces == list("héllo ✓"), "a character comes whole"


def test_stop_token_ids_and_tokens_as_ids(say):
    node = say("abc")
    stop = node.engine.tokenizer.encode("b")
    answer = say.client.chat.completions.create(
        model="base",
        messages=CHAT,
        logprobs=True,
        extra_body={"stop_token_ids": stop, "return_tokens_as_token_ids": True},
    )
    assert answer.choices[0].message.content == "a"
    assert answer.choices[0].model_extra["stop_reason"] == stop[0]
    assert answer.choices[0].logprobs.content[1].token == f"token_id:{stop[0]}"


TWO_CALLS = (
    'Looking.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


def test_tool_calls(say):
    say(TWO_CALLS)
    choice = say.client.chat.completions.create(model="base", messages=CHAT, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Looking."
    assert [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls] == [
        "Zürich",
        "Rome",
    ]
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_tool_calls_stream_with_an_index_each(say):
    say(TWO_CALLS)
    with say.client.chat.completions.stream(model="base", messages=CHAT, tools=TOOLS) as stream:
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Looking."
    assert [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls] == [
        "Zürich",
        "Rome",
    ]


def test_without_tools_or_with_choice_none_the_text_stays(say):
    say(TWO_CALLS)
    plain = say.client.chat.completions.create(model="base", messages=CHAT).choices[0]
    none = say.client.chat.completions.create(
        model="base", messages=CHAT, tools=TOOLS, tool_choice="none"
    ).choices[0]
    assert plain.message.content == none.message.content == TWO_CALLS
    assert plain.finish_reason == none.finish_reason == "stop"


def test_calls_and_answers_go_back_into_the_prompt(say):
    node = say("ok")
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    turns = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    answer = say.client.chat.completions.create(
        model="base", messages=turns, tools=TOOLS, extra_body={"return_token_ids": True}
    )
    prompt = node.engine.tokenizer.decode(
        answer.model_extra["prompt_token_ids"], skip_special_tokens=False
    )
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in prompt
    assert "<tool_response>\nsunny\n</tool_response>" in prompt
    assert '"name": "weather"' in prompt.split("<tools>")[2]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 33}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            },
            "messages[0].content[0]",
        ),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stop": [""]}, "stop"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ],
)
def test_a_bad_field_is_named(node, fields, param):
    with node.client() as client:
        answer = client.post(
            "/v1/chat/completions", json={"model": "base", "messages": CHAT} | fields
        )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split("[")[0].split(".")[0] in error["message"] or param == "messages"


def test_openais_own_errors(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="nope", messages=CHAT)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="base", messages=CHAT, temperature=-1)


def test_unreadable_and_unknown(node):
    with node.client() as client:
        json_type = {"content-type": "application/json"}
        broken = client.post("/v1/chat/completions", content=b"{", headers=json_type)
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
        assert client.get("/nowhere").json()["error"]["code"] == "not_found"
        unknown = client.post(
            "/v1/chat/completions",
            json={"messages": CHAT, "max_tokens": 1, "a_field_of_tomorrow": 1},
        )
        assert unknown.status_code == 200


def test_the_async_client_reads_a_stream_to_done(node):
    with httpx.stream(
        "POST",
        f"{node.url}/v1/chat/completions",
        json={"messages": CHAT, "max_tokens": 3, "stream": True, "seed": 2},
        timeout=30,
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
