"""Users are served between two layers of a background forward; nothing else happens there."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch import nn

from services.engine.domain.share import BackgroundShare
from tests.engine.conftest import wait_until

pytestmark = pytest.mark.engine
SCORED = {"prompt": [65, 66, 67] * 9, "max_tokens": 1, "prompt_logprobs": 0, "priority": 10}
SCORED |= {"seed": 5}
ASKED = {"prompt": [70] * 5, "max_tokens": 3, "ignore_eos": True, "seed": 4, "logprobs": 0}


def layers(node):
    return next(m for m in node.engine.loop.runner.model.modules() if isinstance(m, nn.ModuleList))


def first_scoring(node, action):
    """Run `action` in the first layer of the first forward of the scored prompt."""

    def before(_module, args):
        if args[0].shape[1] == len(SCORED["prompt"]):
            hook.remove()
            action()

    hook = layers(node)[0].register_forward_pre_hook(before)


def order_of_forwards(node):
    """The number of tokens of each forward, as they end."""
    ended = []
    layers(node)[-1].register_forward_hook(lambda _m, args, _out: ended.append(args[0].shape[1]))
    return ended


def post(client, fields):
    answer = client.post("/v1/completions", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_a_user_is_served_within_a_background_forward(own_node):
    node = own_node(background_chunk_tokens=64)
    ended, loop = order_of_forwards(node), node.engine.loop
    with node.client() as client, ThreadPoolExecutor(2) as pool:
        asked = []

        def ask():
            asked.append(pool.submit(post, client, ASKED))
            wait_until(lambda: not loop._orders._queue.empty())

        first_scoring(node, ask)
        post(client, SCORED)
        asked[0].result()
    assert ended.index(5) < ended.index(27), "the user's prompt waited for the whole forward"


def test_another_order_waits_until_the_forward_ends(own_node):
    node = own_node(background_chunk_tokens=64)
    ended, loop = order_of_forwards(node), node.engine.loop
    with node.client() as client, ThreadPoolExecutor(2) as pool:
        asked = []

        def order_then_ask():
            loop.call(lambda: ended.append("order"))
            asked.append(pool.submit(post, client, ASKED))
            wait_until(lambda: loop._orders._queue.qsize() == 2)

        first_scoring(node, order_then_ask)
        post(client, SCORED)
        asked[0].result()
    assert ended[:2] == [27, "order"]
    assert ended.index(5) > 1


def test_interrupted_answers_are_those_of_each_alone(own_node, adapters, monkeypatch):
    node = own_node(background_chunk_tokens=9)
    wanted = [ASKED, ASKED | {"model": "two"}] * 8
    trial = [SCORED | {"model": "one"}, ASKED | {"priority": 5, "model": "one", "max_tokens": 9}]
    with node.client() as client, ThreadPoolExecutor(6) as pool:
        for name, path in adapters.items():
            client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})
        alone = [post(client, fields) for fields in [*trial, *wanted]]
        # Without credit every break serves the users that wait.
        monkeypatch.setattr(
            BackgroundShare, "wait_s", lambda one, now: max(one._present_until - now, 0.0)
        )
        interrupted = [pool.submit(post, client, fields) for fields in trial]
        users = [pool.submit(post, client, fields) for fields in wanted]
        together = [one.result() for one in [*interrupted, *users]]
    for one, other in zip(alone, together, strict=True):
        assert one["text"] == other["text"]
        assert scores(one) == pytest.approx(scores(other), abs=1e-4)


def scores(choice):
    prompt = choice.get("prompt_logprobs") or [None]
    found = [entry["logprob"] for one in prompt[1:] for entry in one.values()]
    return [*found, *((choice["logprobs"] or {}).get("token_logprobs") or [])]


def test_an_error_of_the_loop_in_a_break_ends_the_node(own_node):
    node = own_node(background_chunk_tokens=64)
    loop = node.engine.loop
    with node.client() as client, ThreadPoolExecutor(2) as pool:
        asked, broken = [], RuntimeError("a fault of the loop")

        def fail():
            raise broken

        def ask():
            loop._serve_users = fail
            asked.append(pool.submit(client.post, "/v1/completions", json=ASKED))
            wait_until(lambda: not loop._orders._queue.empty())

        first_scoring(node, ask)
        post(client, SCORED)
        assert asked[0].result().status_code == 503
        assert client.get("/health").status_code == 503
    assert loop._crash is broken
