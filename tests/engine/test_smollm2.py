"""The 135M model: conversion, sense, parity, and that a batch is worth more than one at a time."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from reefstack.models import default_cache_dir, prepare
from tests.engine.conftest import serving
from tests.engine.test_openai_client import TOOLS
from tests.engine.test_parity import logprobs, recomputed

pytestmark = [pytest.mark.engine, pytest.mark.smollm2]
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def path():
    """In the user's own cache: converting costs 10 s and half a gigabyte."""
    pytest.importorskip("gguf")
    return prepare("smollm2", default_cache_dir())


@pytest.fixture(scope="module")
def node(path):
    with serving(path) as running:
        yield running


def test_digits_stand_alone_and_ids_come_back(node):
    tokenizer = node.engine.tokenizer
    assert [tokenizer.token_text(i) for i in tokenizer.encode("x  2 and 123")] == [
        "x",
        "  ",
        "2",
        " and",
        " ",
        "1",
        "2",
        "3",
    ]
    assert tokenizer.decode(tokenizer.encode("Grüße, 世界 🌍!")) == "Grüße, 世界 🌍!"


def test_it_knows_paris_and_agrees_with_transformers(node, path):
    from services.engine.runner import load_model

    answer = node.chat(messages=CAPITAL, temperature=0, max_tokens=12)
    choice = answer["choices"][0]
    assert "Paris" in choice["message"]["content"]
    expected = recomputed(load_model(path, 1), answer["prompt_token_ids"], choice["token_ids"])
    assert logprobs(choice) == pytest.approx(expected, abs=1e-4)


def test_tools_fit_into_its_prompt(node):
    answer = node.chat(messages=CAPITAL, tools=TOOLS, max_tokens=2, temperature=0)
    prompt = node.engine.tokenizer.decode(answer["prompt_token_ids"], skip_special_tokens=False)
    assert prompt.startswith(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\n\n# Tools"
    )


def test_eight_requests_arriving_one_after_another_share_steps(node):
    fields = {"messages": CAPITAL, "max_tokens": 8, "ignore_eos": True, "logprobs": False}
    # The engine runs in this process: its own time says the same beside other work.
    started = time.process_time()
    alone = [node.chat(seed=i, **fields) for i in range(2)]
    one_by_one = (time.process_time() - started) / 2 * 8
    started = time.process_time()
    with ThreadPoolExecutor(8) as pool:
        futures = []
        for i in range(8):
            futures.append(pool.submit(node.chat, seed=i, **fields))
            time.sleep(0.02)
        together = [future.result() for future in futures]
    assert one_by_one / (time.process_time() - started) > 1.5
    for one, other in zip(alone, together, strict=False):
        assert one["choices"][0]["token_ids"] == other["choices"][0]["token_ids"]
