"""Options of the chat template, and texts that are slow, huge or broken."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engine.conftest import CHAT, serving

pytestmark = pytest.mark.engine

TEMPLATE = """{%- set ns = namespace(n=0) -%}
{%- if enable_thinking is defined and enable_thinking -%}think {% endif -%}
{%- if style -%}{{ style }} {% endif -%}
{%- if rows -%}{%- for i in range(rows) -%}{%- for j in range(rows) -%}{%- endfor -%}{%- endfor -%}{%- endif -%}
{%- for message in messages -%}{% generation %}{{ bos_token }}{% if message.reasoning_content is defined %}<{{ message.reasoning_content }}>{% endif %}{{ message.content }}{% endgeneration %}{%- endfor -%}
{%- if add_generation_prompt -%}>{%- endif -%}"""


@pytest.fixture(scope="module")
def thinking(tiny_path, tmp_path_factory):
    """A model whose template has three options."""
    path = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(tiny_path, path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    with serving(path, text_timeout_s=0.5) as node:
        yield node


def rendered(node, messages=CHAT, **options):
    body = {"messages": messages, "chat_template_kwargs": options}
    with node.client() as client:
        answer = client.post("/tokenize", json=body)
        assert answer.status_code == 200, answer.text
        tokens = answer.json()["tokens"]
        return client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]


def test_an_option_of_the_template_is_used(thinking):
    assert "think" not in rendered(thinking)
    assert rendered(thinking, enable_thinking=True, style="dry").startswith("think dry ")


def test_thoughts_of_an_earlier_answer_reach_the_template(thinking):
    earlier = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    assert "<hm>Yes." in rendered(thinking, [*CHAT, earlier, *CHAT])
    for none in (None, 5, ["hm"]):  # clients send the null of an answer back
        said = rendered(thinking, [*CHAT, {**earlier, "reasoning_content": none}])
        assert "<|im_start|>Yes." in said


@pytest.mark.parametrize(
    "options",
    [
        {"chat_template": "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}x"},
        {"messages": []},
        {"tools": [{}]},
        {"tokenize": True},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"return_dict": True},
        {"bos_token": "<|im_end|>"},
        {"range": 1},
        {"namespace": 1},
        {"raise_exception": None},
        {"max_length": 1},
        {"truncation": True},
        {"unknown": 1},
        {"": 1},
        {"style": ["a"]},
        {"style": {"a": 1}},
        {"style": "a" * 1001},
        {"rows": [3]},
    ],
    ids=lambda options: next(iter(options)) or "empty",
)
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/tokenize"])
def test_any_other_option_is_refused_and_named(thinking, options, route):
    with thinking.client() as client:
        answer = client.post(route, json={"messages": CHAT, "chat_template_kwargs": options})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")


def test_a_failing_template_is_the_requests_error(thinking):
    """`range` above the sandbox's limit, and a value of another type than the template expects."""
    with thinking.client() as client:
        for options in ({"rows": 10**7}, {"rows": "many"}, {"style": 5, "rows": -0.5}):
            answer = client.post(
                "/v1/chat/completions", json={"messages": CHAT, "chat_template_kwargs": options}
            )
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_slow_template_holds_up_nobody(thinking):
    with ThreadPoolExecutor(1) as pool, thinking.client() as client:
        started = time.monotonic()
        slow = pool.submit(
            client.post,
            "/v1/chat/completions",
            json={"messages": CHAT, "chat_template_kwargs": {"rows": 6_000}},
        )
        waits = []
        while not slow.done():
            before = time.monotonic()
            assert client.get("/health").status_code == 200
            waits.append(time.monotonic() - before)
        assert slow.result().status_code == 400
        assert "within 0.5 s" in slow.result().json()["error"]["message"]
    assert time.monotonic() - started < 10
    assert len(waits) > 5, "the event loop went on"


@pytest.mark.parametrize(
    "text",
    [b"\\ud800", b"x\\udc00y", b"\\ud83d"],
    ids=["lone high half", "lone low half", "half an emoji"],
)
@pytest.mark.parametrize("place", ["content", "model", "stop"])
def test_half_a_character_is_refused_in_shape(node, text, place):
    fields = {"content": b"hi", "model": b"base", "stop": b"."} | {place: text}
    body = b'{"messages": [{"role": "user", "content": "%(content)s"}], ' % {
        b"content": fields["content"]
    } + b'"model": "%s", "stop": "%s"}' % (fields["model"], fields["stop"])
    with node.client() as client:
        answer = client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_deep_and_long_conversations_are_refused_in_shape(node):
    deep = b'{"messages": [{"role": "user", "content": "x"}], "tools": ' + b"[" * 900 + b"]" * 900
    many = [{"role": "user", "content": ""}] * 60_000
    tool = {"type": "function", "function": {"name": "f", "description": "y" * 3_000_000}}
    with node.client() as client:
        answers = [
            client.post(
                "/v1/chat/completions",
                content=deep + b"}",
                headers={"content-type": "application/json"},
            ),
            client.post("/v1/chat/completions", json={"messages": many}),
            client.post("/v1/chat/completions", json={"messages": CHAT, "tools": [tool]}),
        ]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_call_that_was_cut_off_can_be_history(node):
    """Its conversation goes on, and the text of the call stands in the prompt."""
    halves = ('{"a": "\\ud83d"}', '{"\\udc00 b": 1}', '{"a": NaN}')
    for arguments in (*halves, '{"city": "Ro', "", "null", "[1, 2]", '"x"', "[" * 100_000):
        call = {"id": "c", "type": "function", "function": {"name": "w", "arguments": arguments}}
        turns = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [call]}, *CHAT]
        with node.client() as client:
            answer = client.post("/tokenize", json={"messages": turns})
            if len(arguments) > 1000:
                assert answer.json()["error"]["param"] == "messages", "it does not fit"
                continue
            assert answer.status_code == 200, answer.text
            tokens = answer.json()["tokens"]
            prompt = client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        if arguments.startswith('{"'):
            assert f'"arguments": {arguments}' in prompt
