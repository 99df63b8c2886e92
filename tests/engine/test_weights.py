"""New weights while requests run: pause, transfer over gloo, versions and their spans."""

import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.conftest import free_port, serving, wait_until
from tests.engine.test_parity import logprobs, recomputed
from tests.engine.trainer_process import send

pytestmark = pytest.mark.engine


def specs(model):
    weights = sorted(model.named_parameters())
    return {
        "names": [name for name, _ in weights],
        "dtype_names": ["float32"] * len(weights),
        "shapes": [list(weight.shape) for _, weight in weights],
    }


def trainer(port, path, count):
    program = Path(__file__).with_name("trainer_process.py")
    process = subprocess.Popen(
        [sys.executable, str(program), str(port), str(path), str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "hosting\n"
    return process


def trainer_thread(port, path, count):
    """The same in this process; its group is gone when the thread ends."""
    hosting = threading.Event()
    thread = threading.Thread(target=send, args=(port, path, count, hosting))
    thread.start()
    assert hosting.wait(10)
    return thread


def finished(process):
    process.communicate(timeout=30)
    assert process.returncode == 0


def ok(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_trainer_process_swaps_the_weights_in_mid_request(own_node, tuned, reference):
    node, (path, model) = own_node(), tuned
    port = free_port()
    with node.client() as client, ThreadPoolExecutor(1) as pool:
        before = ok(client.get("/weight_info"))
        running = pool.submit(node.chat, seed=1, max_tokens=1000, ignore_eos=True)
        wait_until(lambda: node.engine.loop.counters.generated_tokens > 5)
        assert ok(client.post("/pause?mode=keep")) == {"status": "paused"}
        assert ok(client.get("/is_paused")) == {"is_paused": True}
        frozen = node.engine.loop.counters.generated_tokens
        process = trainer(port, path, 10_000)
        ok(
            client.post(
                "/init_weight_transfer_engine",
                json={"init_info": {"master_address": "127.0.0.1", "master_port": port}},
            )
        )
        ok(client.post("/start_weight_update", json={}))
        ok(client.post("/update_weights", json={"update_info": specs(model)}))
        ok(client.post("/finish_weight_update", json={"weight_version": "v2"}))
        finished(process)
        assert node.engine.loop.counters.generated_tokens == frozen, "no step was made while paused"
        ok(client.post("/resume"))
        after = ok(client.get("/weight_info"))
        answer = running.result()
    choice = answer["choices"][0]
    first, second = choice["weight_versions"]
    assert (first["version"], second["version"]) == ("base", "v2")
    assert (first["start"], first["end"], second["end"]) == (0, second["start"], 1000)
    assert answer["weight_version"] == "v2"
    assert before["weight_version"] == "base"
    assert after["weight_version"] == "v2"
    assert before["checksum"] != after["checksum"]
    # The first span is exactly the old model's; a fresh request is exactly the new one's.
    old_ids = choice["token_ids"][: first["end"]]
    assert logprobs(choice)[: first["end"]] == pytest.approx(
        recomputed(reference, answer["prompt_token_ids"], old_ids), abs=1e-4
    )
    fresh = node.chat(seed=2, max_tokens=20, ignore_eos=True)
    expected = recomputed(model, fresh["prompt_token_ids"], fresh["choices"][0]["token_ids"])
    assert logprobs(fresh["choices"][0]) == pytest.approx(expected, abs=1e-4)


def test_a_trainer_that_dies_changes_nothing_and_another_may_follow(own_node, tuned):
    node, (path, model) = own_node(weight_transfer_timeout_s=5), tuned
    with node.client() as client:
        before = ok(client.get("/weight_info"))["checksum"]
        port = free_port()
        dying = trainer_thread(port, path, 3)
        ok(
            client.post(
                "/init_weight_transfer_engine",
                json={"init_info": {"master_address": "127.0.0.1", "master_port": port}},
            )
        )
        ok(client.post("/start_weight_update"))
        broken = client.post("/update_weights", json={"update_info": specs(model)})
        dying.join(10)
        assert broken.status_code == 500
        assert "broke off" in broken.json()["error"]["message"]
        assert (
            client.post("/finish_weight_update", json={"weight_version": "v2"}).status_code == 409
        )
        assert ok(client.get("/weight_info")) | {"checksum": before} == ok(
            client.get("/weight_info")
        )
        node.chat(max_tokens=2)
        port = free_port()
        follower = trainer_thread(port, path, 10_000)
        ok(
            client.post(
                "/init_weight_transfer_engine",
                json={"init_info": {"master_address": "127.0.0.1", "master_port": port}},
            )
        )
        ok(client.post("/start_weight_update"))
        ok(client.post("/update_weights", json={"update_info": specs(model)}))
        ok(client.post("/finish_weight_update", json={"weight_version": "v3"}))
        follower.join(10)
        assert ok(client.get("/weight_info"))["checksum"] != before


def test_nobody_at_the_meeting_point_is_an_error_in_time(own_node):
    with own_node(weight_transfer_timeout_s=0.5).client() as client:
        info = {"master_address": "127.0.0.1", "master_port": free_port()}
        answer = client.post("/init_weight_transfer_engine", json={"init_info": info})
    assert answer.status_code == 500
    assert "rendezvous" in answer.json()["error"]["message"]


def test_weights_from_a_file_and_a_checksum_that_names_them(own_node, tuned, tiny_path):
    node, (path, _) = own_node(), tuned
    with node.client() as client:
        first = ok(client.get("/weight_info"))
        for source, version in ((path, "v2"), (tiny_path, "v1 again")):
            ok(client.post("/start_weight_update"))
            ok(client.post("/update_weights", json={"update_info": {"weights_path": str(source)}}))
            ok(client.post("/finish_weight_update", json={"weight_version": version}))
        assert ok(client.get("/weight_info")) == first | {"weight_version": "v1 again"}
        ok(client.post("/update_weight_version", json={"new_version": "renamed"}))
        assert node.chat(max_tokens=1)["weight_version"] == "renamed"


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", float("nan")), ("bfloat16", float("-inf")), ("float64", 1e300)],
)
def test_weights_that_are_no_numbers_are_never_put_in_place(
    own_node, tuned, tmp_path, dtype, value
):
    """The node goes on with the weights that it had. 1e300 is too large for float32."""
    import torch
    from safetensors.torch import load_file, save_file

    node, (path, _) = own_node(), tuned
    tensors = {k: v.to(getattr(torch, dtype)) for k, v in load_file(path).items()}
    next(reversed(tensors.values())).view(-1)[-1] = value
    save_file(tensors, tmp_path / "model.safetensors")
    before = node.chat(temperature=0, max_tokens=4)["choices"][0]["token_ids"]
    with node.client() as client:
        ok(client.post("/start_weight_update"))
        ok(client.post("/update_weights", json={"update_info": {"weights_path": str(tmp_path)}}))
        refused = client.post("/finish_weight_update", json={"weight_version": "v2"})
    assert refused.status_code == 409
    assert "not finite" in refused.json()["error"]["message"]
    assert node.chat(temperature=0, max_tokens=4)["choices"][0]["token_ids"] == before


def test_files_that_are_rewritten_change_no_weights(tiny_path, tuned, tmp_path):
    """Neither those that the node serves, nor those that it has read for an update."""
    base = shutil.copytree(tiny_path, tmp_path / "base")
    new = shutil.copy(tuned[0], tmp_path / "new.safetensors")
    with serving(base) as node, node.client() as client:
        first = node.chat(temperature=0, max_tokens=4)["choices"][0]["token_ids"]
        (base / "model.safetensors").write_bytes(b"")
        assert node.chat(temperature=0, max_tokens=4)["choices"][0]["token_ids"] == first
        ok(client.post("/start_weight_update"))
        ok(client.post("/update_weights", json={"update_info": {"weights_path": str(new)}}))
        new.write_bytes(b"")
        ok(client.post("/finish_weight_update", json={"weight_version": "v2"}))
        assert node.chat(max_tokens=1)["weight_version"] == "v2"


def test_steps_out_of_order_and_unfit_tensors(own_node, tmp_path):
    with own_node().client() as client:
        update = {"update_info": {"names": ["x"], "dtype_names": ["float32"], "shapes": [[1]]}}
        assert client.post("/update_weights", json=update).status_code == 409
        assert client.post("/finish_weight_update", json={"weight_version": "v"}).status_code == 409
        ok(client.post("/start_weight_update"))
        assert (
            "no trainer" in client.post("/update_weights", json=update).json()["error"]["message"]
        )
        assert client.post("/finish_weight_update", json={"weight_version": "v"}).status_code == 409
        assert (
            client.post(
                "/update_weights", json={"update_info": {"weights_path": str(tmp_path)}}
            ).status_code
            == 409
        )
        bad = {"names": ["x"], "dtype_names": [], "shapes": [[1]]}
        assert client.post("/update_weights", json={"update_info": bad}).status_code == 400
        assert (
            client.post("/finish_weight_update", json={}).json()["error"]["param"]
            == "weight_version"
        )
        assert client.post("/pause?mode=nap").status_code == 400


def test_pause_wait_lets_running_requests_end_and_holds_new_ones(own_node):
    node = own_node()
    with node.client() as client, ThreadPoolExecutor(2) as pool:
        running = pool.submit(node.chat, max_tokens=300, ignore_eos=True)
        wait_until(lambda: node.engine.loop.running == 1)
        ok(client.post("/pause?mode=wait"))
        assert node.engine.loop.running == 0
        assert running.result()["choices"][0]["finish_reason"] == "length"
        held = pool.submit(node.chat, max_tokens=2)
        wait_until(lambda: node.engine.loop.waiting == 1)
        assert not held.done()
        ok(client.post("/resume"))
        held.result()


def test_pause_abort_ends_requests_with_what_they_have(own_node):
    node = own_node(max_num_seqs=1)
    with node.client() as client, ThreadPoolExecutor(2) as pool:
        running = pool.submit(node.chat, max_tokens=1500, ignore_eos=True)
        wait_until(lambda: node.engine.loop.running == 1)
        queued = pool.submit(node.chat, max_tokens=10)
        wait_until(lambda: node.engine.loop.waiting == 1)
        ok(client.post("/pause"))
        choice = running.result()["choices"][0]
        assert choice["finish_reason"] == "abort"
        assert 0 < len(choice["token_ids"]) < 1500
        assert queued.result()["choices"][0]["token_ids"] == []
        ok(client.post("/resume"))
        assert node.chat(max_tokens=2)["choices"][0]["finish_reason"] in {"length", "stop"}


def test_there_is_no_prefix_cache_to_reset(node):
    with node.client() as client:
        assert ok(client.post("/reset_prefix_cache"))["entries"] == 0
