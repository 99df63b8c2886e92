"""Full weights replaced by the publisher's own steps while requests keep coming, over a path and over gloo."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from reefcommon.errors import Poison, Unavailable
from reefkit.serving_http import HttpServingNode
from services.publisher.full_weights import Checkpoint, FullWeights
from tests.engine.conftest import wait_until
from tests.engine.test_parity import logprobs
from tests.engine.test_weights import ok
from tests.fakes.leases import SoleHolder

pytestmark = pytest.mark.engine


def under_versions(models, prompt, ids, spans):
    """Logits [T, V] of an answer whose spans were made by several models: each goes on from the keys and values of those before it."""
    import torch
    from transformers import DynamicCache

    cache, rows = DynamicCache(), []
    for span in spans:
        start, end = span["start"], span["end"]
        fed = prompt + ids[: end - 1] if start == 0 else ids[start - 1 : end - 1]
        with torch.no_grad():
            out = models[span["version"]](torch.tensor([fed]), None, None, cache, use_cache=True)
        rows.append(out.logits[0, -(end - start) :])
    return torch.cat(rows)


def misfit(models, answer):
    """How far an answer's log-probabilities are from those of the models that its spans name."""
    import torch

    choice = answer["choices"][0]
    ids = choice["token_ids"]
    logp = torch.log_softmax(
        under_versions(models, answer["prompt_token_ids"], ids, choice["weight_versions"]), dim=-1
    )
    expected = logp[torch.arange(len(ids)), torch.tensor(ids)]
    return float((expected - torch.tensor(logprobs(choice))).abs().max())


def half_updated(old, new, tiny_path):
    """What must never be computed on."""
    import torch

    from services.engine.runner import load_model

    model = load_model(tiny_path, 1)
    with torch.no_grad():
        for i, (name, weight) in enumerate(model.named_parameters()):
            weight.copy_((old if i % 2 else new).get_parameter(name))
    return model


class Load:
    """Requests without a pause, from several clients, until the block ends."""

    def __init__(self, ask: Callable[..., dict[str, Any]], clients: int) -> None:
        self.ask, self.clients = ask, clients
        self.answers: list[dict[str, Any]] = []
        self._ending = threading.Event()

    def _client(self, number: int) -> None:
        count = 0
        while not self._ending.is_set():
            count += 1
            sampling = (
                {"temperature": 0}
                if number % 2
                else {"temperature": 1.0, "seed": 100 * number + count}
            )
            message = "x" * (1 + 40 * (count % 3))
            fields = {
                "max_tokens": 40 + 7 * number,
                "ignore_eos": True,
                "messages": [{"role": "user", "content": message}],
            }
            self.answers.append(self.ask(**fields, **sampling))

    def __enter__(self) -> "Load":
        self._pool = ThreadPoolExecutor(self.clients)
        self._running: list[Future[None]] = [
            self._pool.submit(self._client, number) for number in range(self.clients)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for one in self._running:
            one.result()
        self._pool.shutdown()


async def replaced(
    url: str, way: str, given: Checkpoint, node_type: type[HttpServingNode] = HttpServingNode
) -> dict[str, str]:
    """One replacement, as the publisher makes it. Gives what was set apart."""
    apart: dict[str, str] = {}

    async def set_apart(node: str, reason: str) -> None:
        apart[node] = reason

    async with aiohttp.ClientSession() as session:
        await FullWeights(way, "127.0.0.1", 20.0, 60.0, SoleHolder).replace(
            node_type(url, session), given, set_apart
        )  # type: ignore[arg-type]
    return apart


def test_requests_during_updates_are_each_of_whole_weights(own_node, tuned, reference, tiny_path):
    """P3: every token of every answer is exactly that of the weights that its span names; nothing fails, nothing waits for ever."""
    node, (path, model) = own_node(prefill_chunk_tokens=32), tuned
    new = asyncio.run(Checkpoint.read("checkpoint-" + "0" * 32, path.parent))
    old = asyncio.run(Checkpoint.read("checkpoint-" + "1" * 32, tiny_path))
    counters = node.engine.loop.counters
    with Load(node.chat, 4) as load:
        for way, given in (
            ("path", new),
            ("gloo", old),
            ("path", new),
            ("path", old),
            ("path", new),
        ):
            made = counters.generated_tokens
            wait_until(lambda made=made: counters.generated_tokens > made + 60)
            assert asyncio.run(replaced(node.url, way, given)) == {}
        made = counters.finished
        wait_until(lambda: counters.finished > made + 5)
    models = {"base": reference, old.content_id: reference, new.content_id: model}
    mixed = [answer for answer in load.answers if len(answer["choices"][0]["weight_versions"]) > 1]
    assert mixed, "some were in flight during an update"
    answers = mixed + load.answers[:: max(len(load.answers) // 20, 1)]
    seen = {
        span["version"] for answer in answers for span in answer["choices"][0]["weight_versions"]
    }
    assert seen == models.keys()
    assert max(misfit(models, answer) for answer in answers) < 1e-4
    # The measure tells: on half-updated weights, or with the two models changed over, it is far off.
    half = dict.fromkeys(models, half_updated(reference, model, tiny_path))
    swapped = {"base": model, old.content_id: model, new.content_id: reference}
    for wrong in (half, swapped):
        assert min(misfit(wrong, answer) for answer in answers) > 1e-2
    greedy = [answer for answer in answers if len(answer["choices"][0]["token_ids"]) in (47, 61)]
    for answer in greedy:
        choice = answer["choices"][0]
        logits = under_versions(
            models, answer["prompt_token_ids"], choice["token_ids"], choice["weight_versions"]
        )
        assert logits.argmax(-1).tolist() == choice["token_ids"]
    assert greedy


def test_a_new_label_alone_disturbs_no_request(own_node):
    """P5: the version's name changes in mid-request; the answer is token for token what it is without that."""
    node = own_node()
    fields = {"seed": 5, "max_tokens": 400, "ignore_eos": True}
    undisturbed = node.chat(**fields)["choices"][0]
    with node.client() as client, ThreadPoolExecutor(1) as pool:
        made = node.engine.loop.counters.generated_tokens
        running = pool.submit(node.chat, **fields)
        wait_until(lambda: node.engine.loop.counters.generated_tokens > made + 10)
        ok(client.post("/update_weight_version", json={"new_version": "another name"}))
        choice = running.result()["choices"][0]
    assert choice["token_ids"] == undisturbed["token_ids"]
    assert logprobs(choice) == logprobs(undisturbed)
    assert choice["finish_reason"] == "length"
    assert [span["version"] for span in choice["weight_versions"]] == ["base", "another name"]
    assert node.engine.loop.counters.aborted == 0


STEPS = (
    "pause",
    "start_update",
    "update",
    "finish_update",
    "reset_prefix_cache",
    "weights",
    "resume",
)


def cut(step: str, when: str, error: Exception) -> type[HttpServingNode]:
    """A node whose step fails once, before or after it took effect there."""
    left = [step]

    async def failing(self: HttpServingNode, *args: Any, **kwargs: Any) -> Any:
        fails = bool(left) and not left.clear()
        if fails and when == "before":
            raise error
        result = await getattr(HttpServingNode, step)(self, *args, **kwargs)
        if fails:
            raise error
        return result

    return type("CutNode", (HttpServingNode,), {step: failing})


def test_an_error_at_each_step_leaves_the_node_generating(own_node, tuned, tiny_path):
    """P2 on the real node: with a request in flight, before and after each step. It steps again, on whole weights, and is set apart."""
    node, (path, _) = own_node(), tuned
    new = asyncio.run(Checkpoint.read("checkpoint-" + "0" * 32, path.parent))
    old = asyncio.run(Checkpoint.read("checkpoint-" + "1" * 32, tiny_path))
    with node.client() as client, ThreadPoolExecutor(1) as pool:
        for number, (step, when) in enumerate(
            (step, when) for step in STEPS for when in ("before", "after")
        ):
            error = Unavailable("cut") if number % 2 else Poison("refused")
            running = pool.submit(node.chat, max_tokens=60, ignore_eos=True)
            wait_until(lambda: node.engine.loop.running == 1)
            if step == "resume":  # tried again
                assert asyncio.run(replaced(node.url, "path", new, cut(step, when, error))) == {}
            else:
                with pytest.raises(type(error)):
                    asyncio.run(replaced(node.url, "path", new, cut(step, when, error)))
            assert ok(client.get("/is_paused")) == {"is_paused": False}
            assert len(running.result()["choices"][0]["token_ids"]) == 60
            served = ok(client.get("/weight_info?tensors=true"))["tensors"]
            assert served in ({**new.digests}, {**old.digests})
            asyncio.run(replaced(node.url, "path", old))


def test_what_the_node_refuses_is_told_and_changes_nothing(own_node, tmp_path: Path, tuned):
    import torch
    from safetensors.torch import save_file

    node = own_node()
    save_file({"model.norm.weight": torch.zeros(63)}, tmp_path / "model.safetensors")
    given = asyncio.run(Checkpoint.read("checkpoint-" + "2" * 32, tmp_path))
    with node.client() as client:
        before = ok(client.get("/weight_info"))
        with pytest.raises(Poison, match="has shape"):
            asyncio.run(replaced(node.url, "path", given))
        assert ok(client.get("/weight_info")) == before
        assert ok(client.get("/is_paused")) == {"is_paused": False}
        # part of the weights is not the checkpoint that it was said to be
        save_file({"model.norm.weight": torch.full((64,), 2.0)}, tmp_path / "model.safetensors")
        with pytest.raises(Poison, match="tensors that differ"):
            asyncio.run(
                replaced(
                    node.url,
                    "path",
                    asyncio.run(Checkpoint.read("checkpoint-" + "3" * 32, tmp_path)),
                )
            )
        assert ok(client.get("/is_paused")) == {"is_paused": False}


def test_digests_are_those_of_float32_whatever_the_file_holds(tmp_path: Path):
    import torch
    from safetensors.torch import save_file

    from services.publisher.weight_files import WeightFiles

    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        save_file({"w": values.to(dtype), "v": torch.ones(2)}, tmp_path / "model.safetensors")
        widened = tmp_path / str(dtype)
        widened.mkdir()
        save_file(
            {"w": values.to(dtype).float(), "v": torch.ones(2)}, widened / "model.safetensors"
        )
        assert WeightFiles.read(tmp_path).digests() == WeightFiles.read(widened).digests()
        assert WeightFiles.read(tmp_path).announcement()["names"] == ["v", "w"]
    (tmp_path / "model.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0hello")
    with pytest.raises(Poison, match="not a safetensors file"):
        WeightFiles.read(tmp_path)
    with pytest.raises(Poison, match="no safetensors files"):
        WeightFiles.read(tmp_path / "nowhere")


def test_a_prompt_that_is_half_read_is_read_anew(own_node, tuned, monkeypatch):
    """P3: a long prompt is read in pieces; keys of two models in one prompt would be no one's."""
    from safetensors.torch import load_file

    node, (path, model) = own_node(prefill_chunk_tokens=16), tuned
    loop, weights, read = node.engine.loop, load_file(path), []
    prefill = loop.runner.prefill

    def reading(ids, start, *args, **names):
        read.append(start)
        if len(read) == 3:
            loop.call(lambda: node.engine.weights._put_in_place(weights, "v2"))
        return prefill(ids, start, *args, **names)

    monkeypatch.setattr(loop.runner, "prefill", reading)
    answer = node.chat(
        messages=[{"role": "user", "content": "long " * 40}],
        max_tokens=10,
        ignore_eos=True,
        prompt_logprobs=0,
    )
    assert read[:4] == [0, 16, 32, 0]
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])
    assert answer["choices"][0]["weight_versions"] == [{"version": "v2", "start": 0, "end": 10}]
    assert misfit({"v2": model}, answer) < 1e-4


def test_an_adapters_answer_says_when_the_weights_below_it_changed(own_node, tuned, adapters):
    node, (path, _) = own_node(), tuned
    new = asyncio.run(Checkpoint.read("checkpoint-" + "0" * 32, path.parent))
    with node.client() as client, ThreadPoolExecutor(1) as pool:
        assert (
            client.post(
                "/v1/load_lora_adapter",
                json={"lora_name": "one", "lora_path": str(adapters["one"])},
            ).status_code
            == 200
        )
        running = pool.submit(node.chat, model="one", max_tokens=400, ignore_eos=True)
        wait_until(lambda: node.engine.loop.counters.generated_tokens > 5)
        asyncio.run(replaced(node.url, "path", new))
        assert [span["version"] for span in running.result()["choices"][0]["weight_versions"]] == [
            "one",
            f"one+{new.content_id}",
        ]
        # A later request too is told from one on the weights that the adapter was made for.
        later = node.chat(model="one", max_tokens=3)
        assert [span["version"] for span in later["choices"][0]["weight_versions"]] == [
            f"one+{new.content_id}"
        ]
