"""A sampling parameter is implemented and stated, or refused with its name; never ignored."""

import json
import socket

import pytest

from tests.engine.conftest import CHAT
from tests.engine.test_parity import logprobs, recomputed

pytestmark = pytest.mark.engine
DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "logit_bias": False,
    "allowed_token_ids": [],
}


def test_defaults_are_stated_with_the_seed_that_was_drawn(node):
    stated = node.chat(max_tokens=4, ignore_eos=True)
    sampling = stated["sampling_params"]
    seed = sampling.pop("seed")
    assert sampling == DEFAULTS
    again = node.chat(max_tokens=4, ignore_eos=True, seed=seed)
    assert again["choices"][0]["token_ids"] == stated["choices"][0]["token_ids"]


def test_the_parameters_of_a_request_are_stated_as_used(node):
    given = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 12,
        "min_p": 0.05,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "min_tokens": 2,
        "seed": 9,
    }
    sampling = node.chat(max_tokens=4, logit_bias={"5": 1}, **given)["sampling_params"]
    assert sampling == given | {"logit_bias": True, "allowed_token_ids": []}
    assert node.chat(max_tokens=2, top_k=-1, temperature=1e-9)["sampling_params"] | {
        "seed": 0
    } == DEFAULTS | {"temperature": 0.0, "seed": 0}


def test_nothing_is_stated_unless_ids_were_asked_for(node):
    with node.client() as client:
        body = {"messages": CHAT, "max_tokens": 2}
        assert "sampling_params" not in client.post("/v1/chat/completions", json=body).json()
        stream = client.post("/v1/chat/completions", json=body | {"stream": True}).text
    assert "sampling_params" not in stream


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_states_them_in_its_last_chunk(node, route, usage):
    body = {"messages": CHAT} if "chat" in route else {"prompt": ["a", "b"]}
    body |= {"n": 2, "max_tokens": 5, "stream": True, "return_token_ids": True, "seed": 3}
    if usage:
        body["stream_options"] = {"include_usage": True}
    with node.client() as client:
        lines = [line for line in client.post(route, json=body).text.splitlines() if line]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [i for i, chunk in enumerate(chunks) if "sampling_params" in chunk] == [len(chunks) - 1]
    assert chunks[-1]["sampling_params"] == DEFAULTS | {"seed": 3}
    assert all(chunk["choices"] for chunk in chunks[: -1 if usage else None])


def test_logit_bias_moves_the_distribution_and_its_logprobs(node, reference):
    import torch

    forced = node.chat(max_tokens=6, ignore_eos=True, logit_bias={"77": 100})["choices"][0]
    assert forced["token_ids"] == [77] * 6
    assert logprobs(forced) == pytest.approx([0.0] * 6, abs=1e-4)
    never = node.chat(max_tokens=60, ignore_eos=True, temperature=0)["choices"][0]["token_ids"]
    bias = {str(token): -100 for token in set(never)}
    other = node.chat(max_tokens=20, ignore_eos=True, temperature=0, logit_bias=bias)
    assert not set(other["choices"][0]["token_ids"]) & set(never)
    answer = node.chat(max_tokens=8, ignore_eos=True, seed=1, logit_bias={"5": 3.0, "6": -2})
    prompt, ids = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    logits[:, 5] += 3.0
    logits[:, 6] -= 2.0
    expected = torch.log_softmax(logits, -1)
    assert logprobs(answer["choices"][0]) == pytest.approx(
        [expected[i, token].item() for i, token in enumerate(ids)], abs=1e-4
    )


def test_min_p_and_top_p_keep_the_likely_tokens(node, reference):
    """Every sampled token is in the set, and its log-probability is that of the whole distribution."""
    import torch

    fields = {"seed": 4, "max_tokens": 40, "ignore_eos": True}
    answer = node.chat(min_p=0.6, **fields)
    prompt, ids = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    shares = torch.softmax(logits, -1)
    for i, token in enumerate(ids):
        assert shares[i, token] >= 0.6 * shares[i].max() - 1e-6
    assert logprobs(answer["choices"][0]) == pytest.approx(
        recomputed(reference, prompt, ids), abs=1e-4
    )
    greedy = node.chat(temperature=0, **fields)["choices"][0]["token_ids"]
    assert node.chat(min_p=1.0, **fields)["choices"][0]["token_ids"] == greedy
    assert node.chat(min_p=1.0, top_p=0.5, top_k=9, **fields)["choices"][0]["token_ids"] == greedy


def test_very_small_temperatures_answer(node):
    greedy = node.chat(temperature=0, max_tokens=8)["choices"][0]["token_ids"]
    for temperature in (5e-324, 1e-30, 1e-6, 1.1e-5):
        answer = node.chat(temperature=temperature, max_tokens=8)
        assert answer["choices"][0]["token_ids"] == greedy


def test_min_tokens_and_stop_token_ids_hold_together(node):
    first = node.chat(temperature=0, max_tokens=1)["choices"][0]["token_ids"][0]
    stop = {"temperature": 0, "max_tokens": 9, "stop_token_ids": [first]}
    assert node.chat(**stop)["choices"][0]["token_ids"] == [first]
    held = node.chat(min_tokens=4, **stop)["choices"][0]["token_ids"]
    assert first not in held[:3]
    assert len(held) >= 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 3),
        ("use_beam_search", True),
        ("length_penalty", 0.5),
        ("typical_p", 0.9),
        ("bad_words", ["x"]),
        ("guided_json", {"type": "object"}),
        ("structured_outputs", {"regex": "a"}),
        ("truncate_prompt_tokens", 5),
        ("skip_special_tokens", False),
        ("parallel_tool_calls", False),
        ("functions", [{"name": "f"}]),
        ("reasoning_effort", "high"),
        ("modalities", ["audio"]),
        ("chat_template", "{{ 1 }}"),
    ],
)
def test_an_unsupported_field_is_refused_and_named(node, field, value):
    bodies = [
        ("/v1/chat/completions", {"messages": CHAT, field: value}),
        ("/v1/completions", {"prompt": "x", field: value}),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {field: value}}),
    ]
    with node.client() as client:
        for route, body in bodies:
            answer = client.post(route, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_values_that_ask_for_nothing_are_accepted(node):
    node.chat(
        max_tokens=1,
        best_of=None,
        length_penalty=1.0,
        bad_words=[],
        parallel_tool_calls=True,
        modalities=["text"],
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
    )


@pytest.mark.parametrize(
    "headers",
    [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        "Connection: keep-alive, Upgrade\r\nUpgrade: TLS/1.2, h2c\r\n",
    ],
    ids=["h2c", "websocket", "tls"],
)
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_declined_upgrade_leaves_the_body(node, headers, pieces):
    """Twice on one connection, the body with the headers and after them."""
    body = json.dumps({"messages": CHAT, "max_tokens": 2}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    message, size = head + body, (len(head) + len(body)) // pieces + 1
    port = int(node.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for _ in range(2):
            for at in range(0, len(message), size):
                connection.sendall(message[at : at + size])
            answer = b""
            while b"total_tokens" not in answer:
                more = connection.recv(65536)
                assert more, answer
                answer += more
            assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_wrong_method_names_the_right_one(node):
    with node.client() as client:
        for method, route, allowed in (
            ("GET", "/v1/chat/completions", "POST"),
            ("DELETE", "/v1/completions", "POST"),
            ("POST", "/v1/models", "GET"),
            ("PUT", "/health", "GET"),
        ):
            answer = client.request(method, route)
            assert answer.status_code == 405
            assert answer.headers["allow"] == allowed
            assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "x-unknown"])
def test_a_compressed_body_is_415(node, encoding):
    import gzip

    body = gzip.compress(json.dumps({"messages": CHAT}).encode())
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    with node.client() as client:
        answer = client.post("/v1/chat/completions", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (415, "invalid_request_error")
    assert answer.headers["accept-encoding"] == "identity"


def test_answers_name_the_weights_and_wrong_models_are_404(node):
    answer = node.chat(max_tokens=1)
    assert answer["model"] == "base"
    assert answer["system_fingerprint"].endswith(answer["weight_version"])
    with node.client() as client:
        for model in ("Base", "base ", "gpt-4o", "../base"):
            for route, body in (
                ("/v1/chat/completions", {"messages": CHAT}),
                ("/v1/completions", {"prompt": "x"}),
                ("/inference/v1/generate", {"token_ids": [1]}),
                ("/tokenize", {"prompt": "x"}),
            ):
                wrong = client.post(route, json=body | {"model": model})
                assert wrong.status_code == 404
                assert wrong.json()["error"]["code"] == "model_not_found"
                assert wrong.json()["error"]["param"] == "model"
