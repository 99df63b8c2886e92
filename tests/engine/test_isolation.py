"""A request that is wrong, or that breaks something, is answered alone; the loop goes on."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError

from services.engine.routes.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
)
from tests.engine.conftest import CHAT, wait_until

pytestmark = pytest.mark.engine
VOCAB = 259


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": 2, "stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"min_tokens": 1, "stop_token_ids": [3, 10**9]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"min_tokens": 1, "stop_token_ids": list(range(VOCAB))}, "stop_token_ids"),
        ({"logit_bias": {str(VOCAB): 1.0}}, "logit_bias"),
        ({"logit_bias": {"-2": 1.0}}, "logit_bias"),
        ({"logit_bias": {"1_0": 1.0}}, "logit_bias"),
        ({"logit_bias": {"7": 101}}, "logit_bias"),
        ({"logit_bias": {"7": "5"}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids"),
        ({"allowed_token_ids": ["7"]}, "allowed_token_ids"),
        ({"allowed_token_ids": list(range(VOCAB)) * 5, "n": 2**40}, "n"),
        (
            {"allowed_token_ids": [258, 9], "stop_token_ids": [9], "min_tokens": 1},
            "allowed_token_ids",
        ),
        ({"min_tokens": 5000}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"n": 2**40}, "n"),
        ({"n": True}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": False}, "temperature"),
        ({"temperature": -0.01}, "temperature"),
        ({"top_p": "1"}, "top_p"),
        ({"top_k": -7}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": True}, "presence_penalty"),
        ({"frequency_penalty": "2"}, "frequency_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"logprobs": True, "top_logprobs": 2**33}, "logprobs"),
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
        ({"prompt_logprobs": "1"}, "prompt_logprobs"),
        ({"priority": 2**40}, "priority"),
        ({"priority": "high"}, "priority"),
    ],
    ids=str,
)
def test_a_wrong_number_is_refused_and_named(node, fields, param):
    with node.client() as client:
        answer = client.post(
            "/v1/chat/completions", json={"messages": CHAT, "max_tokens": 4} | fields
        )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert len(node.chat(max_tokens=2, ignore_eos=True)["choices"][0]["token_ids"]) == 2


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/v1/completions", {"prompt": [[1, 2], [VOCAB]]}, "prompt"),
        ("/v1/completions", {"prompt": [True, False]}, "prompt"),
        ("/v1/completions", {"prompt": [1.0]}, "prompt"),
        ("/v1/completions", {"prompt": [2**64]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "logprobs": 2**31}, "logprobs"),
        ("/v1/completions", {"prompt": "x", "logprobs": True}, "logprobs"),
        ("/inference/v1/generate", {"token_ids": [VOCAB]}, "token_ids"),
        ("/inference/v1/generate", {"token_ids": ["1"]}, "token_ids"),
        ("/detokenize", {"tokens": [2**40]}, "tokens"),
    ],
    ids=str,
)
def test_a_wrong_id_or_count_is_refused_and_named(node, route, body, param):
    with node.client() as client:
        answer = client.post(route, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatRequest, {"messages": [0] * 90_000}),
        (ChatRequest, {"messages": CHAT, "tools": ["f"] * 90_000}),
        (ChatRequest, {"messages": CHAT, "stop": [None] * 90_000}),
        (ChatRequest, {"messages": CHAT, "stop_token_ids": ["1"] * 90_000}),
        (ChatRequest, {"messages": CHAT, "logit_bias": {str(i): "1" for i in range(90_000)}}),
        (CompletionRequest, {"prompt": [["a"]] * 90_000}),
        (CompletionRequest, {"prompt": ["a", 1] * 45_000}),
        (GenerateRequest, {"token_ids": [0.5] * 90_000}),
        (DetokenizeRequest, {"tokens": [True] * 90_000}),
    ],
)
def test_many_wrong_entries_are_not_listed_one_by_one(model, body):
    """The node serves nobody while a million mistakes are described."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= 4  # one for each form of the field


MANY = [{"role": "user", "content": "a"}] * 10_001


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": MANY}, "messages", "at most 10000"),
        ({"messages": [{"role": "user", "content": MANY}]}, "messages", "at most 10000 parts"),
        ({"tools": MANY}, "tools", "at most 10000"),
        ({"stop": "x" * 257}, "stop", "strings of 1 to 256 characters"),
    ],
    ids=["messages", "parts", "tools", "stop"],
)
def test_a_body_that_costs_much_time_is_refused(node, fields, param, words):
    with node.client() as client:
        answer = client.post("/v1/chat/completions", json={"messages": CHAT} | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    assert words in error["message"]


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"0x1"])
def test_a_number_that_json_does_not_have_is_refused(node, number):
    body = b'{"messages": [{"role": "user", "content": "x"}], "temperature": ' + number + b"}"
    with node.client() as client:
        answer = client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def failing(function, when):
    """`function`, but an exception of a kind that nobody expects if `when` says so."""

    def call(*args, **names):
        if when(*args, **names):
            raise IndexError("index 151645 is out of bounds")
        return function(*args, **names)

    return call


@pytest.mark.parametrize("place", ["decode", "sample", "accept", "join", "prefill", "scores"])
def test_a_sequence_that_fails_takes_no_other_with_it(own_node, monkeypatch, place):
    """Its neighbours give the same tokens as alone, and the node stays healthy."""
    from services.engine import batch, lane
    from services.engine.domain.sequence import SequenceState

    node = own_node()
    runner, bad_top_k = node.engine.loop.runner, 77
    fields = [{"seed": i, "max_tokens": 30, "ignore_eos": True} for i in range(3)]
    alone = [node.chat(**one)["choices"][0]["token_ids"] for one in fields]

    def has_bad_row(_logits, rows):
        return any(row.params.top_k == bad_top_k and len(row.token_ids) >= 3 for row in rows)

    if place == "decode":
        bad = {"max_tokens": 100, "messages": [{"role": "user", "content": "y" * 200}]}
        when = lambda _ids, positions, *_: max(positions) > 240  # noqa: E731
        monkeypatch.setattr(runner, "decode", failing(runner.decode, when))
    elif place == "sample":
        bad = {"top_k": bad_top_k, "max_tokens": 20}
        monkeypatch.setattr(batch, "sample", failing(batch.sample, has_bad_row))
    elif place == "join":
        bad = {"top_k": bad_top_k, "max_tokens": 20}
        when = lambda _logits, rows: rows[0].params.top_k == bad_top_k  # noqa: E731
        monkeypatch.setattr(batch, "sample", failing(batch.sample, when))
    elif place == "accept":
        bad = {"top_k": bad_top_k, "max_tokens": 20}
        when = lambda self, *_: self.params.top_k == bad_top_k and len(self.token_ids) == 5  # noqa: E731
        monkeypatch.setattr(SequenceState, "accept", failing(SequenceState.accept, when))
    elif place == "prefill":
        bad = {"messages": [{"role": "user", "content": "y" * 900}]}
        when = lambda ids, start, *_, **__: start > 500  # noqa: E731
        monkeypatch.setattr(runner, "prefill", failing(runner.prefill, when))
    else:
        bad = {"prompt_logprobs": 7}
        monkeypatch.setattr(lane, "score_prompt", failing(lane.score_prompt, lambda *_: True))
    with node.client() as client, ThreadPoolExecutor(4) as pool:
        client.post("/pause?mode=keep")
        good = [pool.submit(node.chat, **one) for one in fields]
        body = {"messages": CHAT, "ignore_eos": True, "n": 2} | bad
        broken = pool.submit(client.post, "/v1/chat/completions", json=body)
        wait_until(lambda: node.engine.loop.waiting == 4)
        client.post("/resume")
        assert [one.result()["choices"][0]["token_ids"] for one in good] == alone
        answer = broken.result()
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "151645" in answer.json()["error"]["message"]
        assert client.get("/health").status_code == 200
    wait_until(lambda: node.engine.loop.running == 0)


def test_many_failures_in_a_row_do_not_end_the_node(own_node, monkeypatch):
    """A stream gets an error event and no `[DONE]`."""
    node = own_node()
    runner = node.engine.loop.runner
    monkeypatch.setattr(runner, "decode", failing(runner.decode, lambda *_: True))
    body = {"messages": CHAT, "max_tokens": 9, "ignore_eos": True}
    with node.client() as client:
        for stream in (False, True) * 4:
            answer = client.post("/v1/chat/completions", json=body | {"stream": stream})
            assert "out of bounds" in answer.text
            assert "[DONE]" not in answer.text
        monkeypatch.undo()
        assert client.get("/health").status_code == 200
    assert len(node.chat(max_tokens=3, ignore_eos=True)["choices"][0]["token_ids"]) == 3


def test_an_answer_that_cannot_be_written_is_an_error_in_shape(own_node, monkeypatch):
    node = own_node()
    monkeypatch.setattr(
        type(node.engine.tokenizer), "token_bytes", failing(lambda *_: b"", lambda *_: True)
    )
    body = {"messages": CHAT, "max_tokens": 3, "logprobs": True}
    with node.client() as client:
        whole = client.post("/v1/chat/completions", json=body)
        assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")
        stream = client.post("/v1/chat/completions", json=body | {"stream": True}).text
        assert '"server_error"' in stream
        assert "[DONE]" not in stream
    wait_until(lambda: node.engine.loop.running == 0)


def test_a_seed_may_be_any_64_bit_integer(node):
    for seed in (-(2**63), -1, 0, 2**63, 2**64 - 1):
        first, second = (node.chat(seed=seed, max_tokens=3) for _ in range(2))
        assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
    started = time.monotonic()
    node.chat(max_tokens=1, top_k=2**62, top_p=1.0)
    assert time.monotonic() - started < 5
