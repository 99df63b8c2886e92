"""LoRA adapters: loading, choice per request, mixed batches, unloading."""

import gc
import json
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engine.conftest import peft_under_new_transformers, wait_until
from tests.engine.test_parity import logprobs, recomputed

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def loaded(node, adapters):
    with node.client() as client:
        for name, path in adapters.items():
            answer = client.post(
                "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)}
            )
            assert answer.status_code == 200, answer.text
            assert answer.text == f"Success: LoRA adapter '{name}' added successfully."
        yield node
        for name in adapters:
            assert (
                client.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code == 200
            )


@pytest.mark.parametrize("name", ["one", "two"])
def test_an_adapter_is_pefts_own(loaded, tiny_path, adapters, name):
    import torch
    from peft import PeftModel

    from services.engine.runner import load_model

    answer = loaded.chat(model=name, temperature=0, max_tokens=20, ignore_eos=True)
    prompt, choice = answer["prompt_token_ids"], answer["choices"][0]
    with peft_under_new_transformers():
        model = PeftModel.from_pretrained(load_model(tiny_path, 1), adapters[name]).eval()
    assert logprobs(choice) == pytest.approx(
        recomputed(model, prompt, choice["token_ids"]), abs=1e-4
    )
    with torch.no_grad():
        logits = model(torch.tensor([prompt + choice["token_ids"]])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == choice["token_ids"]
    assert answer["weight_version"] == name
    assert choice["weight_versions"] == [{"version": name, "start": 0, "end": 20}]


def test_base_and_two_adapters_share_a_batch(loaded):
    names = ["base", "one", "two", "base", "two", "one"]
    wanted = [
        {"model": name, "seed": i, "max_tokens": 20 + 3 * i, "ignore_eos": True}
        for i, name in enumerate(names)
    ]
    alone = [loaded.chat(**fields) for fields in wanted]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda fields: loaded.chat(**fields), wanted))
    for one, other in zip(alone, together, strict=True):
        assert one["choices"][0]["token_ids"] == other["choices"][0]["token_ids"]
        assert logprobs(one["choices"][0]) == pytest.approx(logprobs(other["choices"][0]), abs=1e-4)
    answers = {
        tuple(loaded.chat(model=name, temperature=0, max_tokens=20)["choices"][0]["token_ids"])
        for name in names
    }
    assert len(answers) == 3


def test_models_lists_base_and_adapters(loaded, tiny_path, adapters):
    with loaded.client() as client:
        models = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert models["base"]["root"] == str(tiny_path)
    assert models["one"]["root"] == str(adapters["one"])
    assert models["one"]["parent"] == "base"


def test_a_taken_name_is_refused_unless_in_place(loaded, adapters):
    body = {"lora_name": "one", "lora_path": str(adapters["two"])}
    with loaded.client() as client:
        refused = client.post("/v1/load_lora_adapter", json=body)
        assert refused.status_code == 400
        assert "has already been loaded" in refused.json()["error"]["message"]
        assert (
            client.post("/v1/load_lora_adapter", json=body | {"load_inplace": True}).status_code
            == 200
        )
        swapped = loaded.chat(model="one", temperature=0, max_tokens=10)["choices"][0]["token_ids"]
        assert (
            swapped
            == loaded.chat(model="two", temperature=0, max_tokens=10)["choices"][0]["token_ids"]
        )
        body["lora_path"] = str(adapters["one"])
        assert (
            client.post("/v1/load_lora_adapter", json=body | {"load_inplace": True}).status_code
            == 200
        )


def test_unknown_names_and_paths_are_not_found(node, tmp_path):
    with node.client() as client:
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "nope"}).status_code == 404
        missing = client.post(
            "/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": str(tmp_path / "no")}
        )
        assert missing.status_code == 404
        assert missing.json()["error"]["param"] == "lora_path"
        assert (
            client.post("/v1/load_lora_adapter", json={"lora_name": "x"}).json()["error"]["param"]
            == "lora_path"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "LORA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"lora_alpha": 1e40}, "not finite"),
        ({"alpha_pattern": {"q_proj": [2]}}, "alpha_pattern"),
        ({"alpha_pattern": {"(": 2}}, "alpha_pattern"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern"),
    ],
)
def test_adapters_of_another_kind_are_refused(node, adapters, tmp_path, change, message):
    path = shutil.copytree(adapters["two"], tmp_path / "odd")
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | change))
    with node.client() as client:
        refused = client.post(
            "/v1/load_lora_adapter", json={"lora_name": "odd", "lora_path": str(path)}
        )
    assert refused.status_code == 400
    assert message in refused.json()["error"]["message"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(node, adapters, tmp_path, value):
    path = refilled(adapters["two"], tmp_path / "odd", value)
    with node.client() as client:
        refused = client.post(
            "/v1/load_lora_adapter", json={"lora_name": "odd", "lora_path": str(path)}
        )
    assert refused.status_code == 400
    assert "not finite" in refused.json()["error"]["message"]


def test_weights_of_no_dimension_are_refused(node, adapters, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    path = shutil.copytree(adapters["two"], tmp_path / "odd")
    tensors = load_file(path / "adapter_model.safetensors")
    odd = next(name for name in tensors if ".lora_A." in name)
    save_file(tensors | {odd: torch.tensor(1.0)}, path / "adapter_model.safetensors")
    with node.client() as client:
        refused = client.post(
            "/v1/load_lora_adapter", json={"lora_name": "odd", "lora_path": str(path)}
        )
    assert refused.status_code == 400
    assert "do not fit" in refused.json()["error"]["message"]


def test_a_file_that_is_rewritten_changes_no_loaded_adapter(own_node, adapters, tmp_path):
    """Neither other bytes in the same file nor an empty file reach what was read before."""
    node, path = own_node(), shutil.copytree(adapters["two"], tmp_path / "live")
    weights = path / "adapter_model.safetensors"
    with node.client() as client:
        body = {"lora_name": "live", "lora_path": str(path)}
        assert client.post("/v1/load_lora_adapter", json=body).status_code == 200
    asked = {"model": "live", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    before = node.chat(**asked)["choices"][0]
    size = weights.stat().st_size
    for size_now in (size, 0):
        with weights.open("r+b") as file:
            file.truncate(size_now)
            file.seek(size_now // 2)
            file.write(bytes(size_now // 2))
        assert node.chat(**asked)["choices"][0] == before


def test_a_file_of_weights_that_was_cut_short_is_refused(node, adapters, tmp_path):
    path = shutil.copytree(adapters["two"], tmp_path / "odd")
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with node.client() as client:
        refused = client.post(
            "/v1/load_lora_adapter", json={"lora_name": "odd", "lora_path": str(path)}
        )
    assert refused.status_code == 400
    assert "cannot be read" in refused.json()["error"]["message"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_weights_that_overflow_fail_their_own_requests_only(
    own_node, adapters, tmp_path, temperature
):
    """A candidate is tried beside users: in one batch with them, and read together with them."""
    node = own_node()
    with node.client() as client, ThreadPoolExecutor(8) as pool:
        path = refilled(adapters["two"], tmp_path / "odd", 1e38)
        assert (
            client.post(
                "/v1/load_lora_adapter", json={"lora_name": "odd", "lora_path": str(path)}
            ).status_code
            == 200
        )
        users = [pool.submit(node.chat, max_tokens=60, ignore_eos=True, seed=i) for i in range(3)]
        asked = {
            "model": "odd",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": temperature,
            "max_tokens": 8,
        }
        tries = [
            pool.submit(client.post, "/v1/chat/completions", json=asked | {"n": 1 + i % 2})
            for i in range(5)
        ]
        scored = {"model": "odd", "prompt": [1, 2, 3], "max_tokens": 1, "prompt_logprobs": 1}
        tries.append(pool.submit(client.post, "/v1/completions", json=scored))
        assert [answer.result().status_code for answer in tries] == [500] * 6
        assert all(len(user.result()["choices"][0]["token_ids"]) == 60 for user in users)
        assert client.get("/health").status_code == 200


def refilled(adapter, path, value):
    """The adapter with one and the same value in all of its weights."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(adapter, path)
    weights = path / "adapter_model.safetensors"
    save_file(
        {name: torch.full_like(tensor, value) for name, tensor in load_file(weights).items()},
        weights,
    )
    return path


def test_limits_on_number_and_rank(own_node, adapters):
    with own_node(max_loras=1, max_lora_rank=4).client() as client:
        assert (
            client.post(
                "/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(adapters["two"])}
            ).status_code
            == 200
        )
        full = client.post(
            "/v1/load_lora_adapter", json={"lora_name": "b", "lora_path": str(adapters["two"])}
        )
        assert full.status_code == 400
        assert "max_loras" in full.json()["error"]["message"]
    with own_node(max_lora_rank=2).client() as client:
        refused = client.post(
            "/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(adapters["two"])}
        )
        assert "max_lora_rank" in refused.json()["error"]["message"]


def test_unloading_lets_requests_in_flight_finish_and_then_frees(own_node, adapters):
    node = own_node()
    with node.client() as client, ThreadPoolExecutor(1) as pool:
        client.post(
            "/v1/load_lora_adapter", json={"lora_name": "gone", "lora_path": str(adapters["one"])}
        )
        alive = weakref.ref(node.engine.adapters.loaded()[0])
        expected = node.chat(model="gone", seed=1, max_tokens=300, ignore_eos=True)["choices"][0][
            "token_ids"
        ]
        client.post("/pause?mode=keep")
        running = pool.submit(node.chat, model="gone", seed=1, max_tokens=300, ignore_eos=True)
        wait_until(lambda: node.engine.loop.waiting == 1)
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "gone"}).status_code == 200
        refused = client.post(
            "/v1/chat/completions",
            json={"model": "gone", "messages": [{"role": "user", "content": "x"}]},
        )
        assert refused.status_code == 404
        client.post("/resume")
        assert running.result()["choices"][0]["token_ids"] == expected
        wait_until(lambda: gc.collect() is not None and alive() is None)
