"""A live serving node on a free loopback port, with the tiny model, and the same model in plain transformers."""

import contextlib
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

CHAT = [{"role": "user", "content": "Say something."}]


@dataclass
class Node:
    """A running server and what is inside it."""

    url: str
    app: Any

    @property
    def engine(self) -> Any:
        return self.app.state.engine

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def chat(self, **fields: Any) -> dict[str, Any]:
        """One chat completion with token ids and log-probabilities."""
        body = {"messages": CHAT, "return_token_ids": True, "logprobs": True} | fields
        with self.client() as client:
            answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.contextmanager
def serving(model_path: Path, **settings: Any) -> Iterator[Node]:
    """A node in this process, stopped at the end."""
    import uvicorn

    from services.engine.__main__ import server_config
    from services.engine.app import build_app
    from services.engine.settings import Settings

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    chosen = Settings(model_path=model_path, served_model_name="base", port=port, **settings)
    app = build_app(chosen)
    config = server_config(app, chosen)
    config.timeout_graceful_shutdown = 2
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.02)
    try:
        yield Node(f"http://127.0.0.1:{port}", app)
    finally:
        server.should_exit = True
        thread.join(15)
        listener.close()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Poll until it holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_path(model_cache: Path) -> Path:
    from reefstack.models import prepare

    return prepare("tiny", model_cache)


@pytest.fixture(scope="session")
def node(tiny_path: Path) -> Iterator[Node]:
    """Shared; tests leave it as they found it."""
    with serving(tiny_path) as running:
        yield running


@pytest.fixture
def own_node(tiny_path: Path) -> Iterator[Callable[..., Node]]:
    """`own_node(max_num_seqs=2)`: a node for one test that changes or limits it."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serving(tiny_path, **settings))


@pytest.fixture(scope="session")
def reference(tiny_path: Path) -> Any:
    """The same weights in transformers."""
    from services.engine.runner import load_model

    return load_model(tiny_path, 1)


@pytest.fixture(scope="session")
def tuned(tiny_path, tmp_path_factory):
    """Other weights of the same shape: (safetensors file, transformers model)."""
    import torch
    from safetensors.torch import save_file

    from services.engine.runner import load_model

    model = load_model(tiny_path, 1)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.05)
    path = tmp_path_factory.mktemp("tuned") / "model.safetensors"
    save_file(dict(model.named_parameters()), path)
    return path, model


@pytest.fixture(scope="session")
def adapters(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two PEFT adapters with random weights: `one` (all projections, and lm_head), `two` (attention alone)."""
    from services.engine.runner import load_model

    root = tmp_path_factory.mktemp("adapters")
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    for name, targets, seed in (("one", every, 1), ("two", every[:4], 2)):
        save_adapter(load_model(tiny_path, 1), root / name, targets, seed)
    return {"one": root / "one", "two": root / "two"}


def save_adapter(model: Any, path: Path, targets: list[str], seed: int) -> None:
    """A LoRA adapter whose effect is large enough to be seen."""
    import torch
    from peft import LoraConfig, get_peft_model

    with peft_under_new_transformers():
        wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    wrapped.save_pretrained(path, save_embedding_layers=False)


@contextlib.contextmanager
def peft_under_new_transformers() -> Iterator[None]:
    """peft 0.21 still asks transformers for a name that 5.24 has deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
