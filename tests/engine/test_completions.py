"""Text and token completions, prompt scores, tokenizing, ids in and out."""

import pytest

from tests.engine.test_openai_client import client_of
from tests.engine.test_parity import recomputed

pytestmark = pytest.mark.engine


@pytest.fixture
def post(node):
    with node.client() as client:

        def send(route, **body):
            answer = client.post(route, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        yield send


def test_prompts_as_text_ids_and_lists(post):
    ids = post("/tokenize", prompt="hello")["tokens"]
    fields = {"temperature": 0, "max_tokens": 8, "return_token_ids": True}
    text = post("/v1/completions", prompt="hello", **fields)["choices"][0]
    assert text["prompt_token_ids"] == ids
    for prompt in (ids, [ids], ["hello"]):
        choice = post("/v1/completions", prompt=prompt, **fields)["choices"][0]
        assert choice["token_ids"] == text["token_ids"]
    many = post(
        "/v1/completions", prompt=["hello", "bye"], n=2, seed=1, max_tokens=4, return_token_ids=True
    )
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
    assert many["choices"][0]["prompt_token_ids"] == many["choices"][1]["prompt_token_ids"] == ids
    assert many["usage"]["prompt_tokens"] == len("hello") + len("bye")


def test_completion_logprobs_and_stream(node):
    with client_of(node) as client:
        fields = {
            "model": "base",
            "prompt": ["ab", "cd"],
            "max_tokens": 12,
            "seed": 3,
            "logprobs": 2,
            # Parts of characters have the same text, so that names by text would collide.
            "extra_body": {"return_tokens_as_token_ids": True},
        }
        whole = client.completions.create(**fields)
        chunks = list(client.completions.create(**fields, stream=True))
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        logprobs = choice.logprobs
        assert (
            len(logprobs.tokens)
            == len(logprobs.token_logprobs)
            == len(logprobs.top_logprobs)
            == len(logprobs.text_offset)
        )
        assert all(2 <= len(top) <= 3 for top in logprobs.top_logprobs)
        assert [x for part in parts for x in part.logprobs.token_logprobs] == pytest.approx(
            logprobs.token_logprobs, abs=1e-4
        )


def test_scoring_a_prompt_without_generating(post, reference):
    ids = post("/tokenize", prompt="the quick brown fox")["tokens"]
    expected = recomputed(reference, ids[:1], ids[1:])
    echoed = post("/v1/completions", prompt=ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert echoed["text"] == "the quick brown fox"
    assert echoed["finish_reason"] == "length"
    assert echoed["logprobs"]["token_logprobs"][0] is None
    assert echoed["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
    scored = post("/v1/completions", prompt=ids, max_tokens=1, prompt_logprobs=2)["choices"][0][
        "prompt_logprobs"
    ]
    assert scored[0] is None
    assert [
        entry[str(i)]["logprob"] for entry, i in zip(scored[1:], ids[1:], strict=True)
    ] == pytest.approx(expected, abs=1e-4)
    assert all(2 <= len(entry) <= 3 for entry in scored[1:])
    assert all(min(value["rank"] for value in entry.values()) == 1 for entry in scored[1:])


def test_generate_takes_and_gives_ids(post, reference):
    ids = post("/tokenize", prompt="hello")["tokens"]
    params = {"max_tokens": 6, "seed": 1, "n": 2, "logprobs": 1, "ignore_eos": True}
    answer = post("/inference/v1/generate", token_ids=ids, sampling_params=params, request_id="r1")
    assert answer["request_id"] == "r1"
    for choice in answer["choices"]:
        assert choice["weight_versions"] == [{"version": "base", "start": 0, "end": 6}]
        content = choice["logprobs"]["content"]
        assert [entry["token_id"] for entry in content] == choice["token_ids"]
        assert [entry["logprob"] for entry in content] == pytest.approx(
            recomputed(reference, ids, choice["token_ids"]), abs=1e-4
        )
        assert all(1 <= entry["rank"] <= 259 for entry in content)


def test_tokenize_is_what_chat_reads(node, post):
    messages = [{"role": "user", "content": "Say something."}]
    answer = post("/tokenize", messages=messages, return_token_strs=True)
    assert answer["tokens"] == node.chat(max_tokens=1)["prompt_token_ids"]
    assert "".join(answer["token_strs"]) == post("/detokenize", tokens=answer["tokens"])["prompt"]
    assert answer["count"] == len(answer["tokens"])


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/v1/completions", {"prompt": [1, 900]}, "prompt"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/v1/completions", {}, "prompt"),
        ("/inference/v1/generate", {"token_ids": [0, -1]}, "token_ids"),
        ("/inference/v1/generate", {"token_ids": []}, "prompt"),
        ("/tokenize", {}, "prompt"),
    ],
)
def test_bad_prompts_are_named(node, route, body, param):
    with node.client() as client:
        answer = client.post(route, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_prompt_that_cannot_fit_costs_no_time(node):
    """Refused by its length alone: tokenizing it would hold up every other request."""
    huge = "x" * 8_000_000
    with node.client() as client:
        for route, body in (
            ("/v1/completions", {"prompt": huge}),
            ("/v1/completions", {"prompt": ["ok", huge]}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": huge}]}),
        ):
            answer = client.post(route, json=body, timeout=10)
            assert answer.status_code == 400, answer.text
            assert "maximum context length" in answer.json()["error"]["message"]
        answer = client.post("/v1/completions", json={"prompt": ["x"] * 100_000}, timeout=10)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
