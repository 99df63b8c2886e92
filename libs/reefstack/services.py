"""The programs of Reef itself, each `python -m services.<name>`."""

import sys
from collections.abc import Mapping
from pathlib import Path

from reefstack.spec import HttpReady, ProcessSpec

TOPICS = "topics"  # not a program: the step that creates the topics
ENGINE = "engine"
# In starting order, each with its needs. All start beside the serving node: to join a consumer
# group is mostly waiting, to load a model mostly work. Until then a service that needs the node is
# unready.
SERVICES: Mapping[str, tuple[str, ...]] = {
    "publisher": (TOPICS, "valkey"),
    "experience": (TOPICS,),
    "evaluator": (TOPICS, "valkey"),
    "trainer": (TOPICS, "valkey"),
    "harness": (TOPICS, "valkey"),
    "gateway": (TOPICS, "valkey"),
}
# A program ends before those that it asks: the gateway first, which closes the door, the node last.
_ASKS: Mapping[str, tuple[str, ...]] = {
    "gateway": (ENGINE, "publisher", "experience", "trainer", "evaluator", "harness"),
    "publisher": (ENGINE,),
    "evaluator": (ENGINE,),
    "harness": (ENGINE,),
    "trainer": (ENGINE,),
}
# Without these no user has an answer. The work of the others lies in the log until they are back.
_ANSWERS = ("gateway", ENGINE)


def engine(
    port: int,
    state_dir: Path,
    *,
    model_path: Path,
    served_as: str,
    adapters: int,
    env: Mapping[str, str],
) -> ProcessSpec:
    """The embedded serving node. It may take minutes to load a model."""
    own = {
        "REEF_ENGINE_MODEL_PATH": str(model_path),
        "REEF_ENGINE_SERVED_MODEL_NAME": served_as,
        "REEF_ENGINE_HOST": "127.0.0.1",
        "REEF_ENGINE_PORT": str(port),
        "REEF_ENGINE_MAX_LORAS": str(adapters),
    }
    return _python(
        # vLLM says at /health that it is ready
        ENGINE,
        port,
        state_dir,
        {**env, **own},
        (),
        ready_within_s=300.0,
        ready_path="/health",
    )


def service(
    name: str, port: int, state_dir: Path, *, env: Mapping[str, str], present: frozenset[str]
) -> ProcessSpec:
    """A service. It waits for those of its needs that this plan starts."""
    waits = tuple(other for other in SERVICES[name] if other in present)
    return _python(name, port, state_dir, env, waits, ready_within_s=180.0)


def _python(
    name: str,
    port: int,
    state_dir: Path,
    env: Mapping[str, str],
    waits: tuple[str, ...],
    *,
    ready_within_s: float,
    ready_path: str = "/readyz",
) -> ProcessSpec:
    url = f"http://127.0.0.1:{port}"
    return ProcessSpec(
        name=name,
        argv=(sys.executable, "-m", f"services.{name}"),
        probe=HttpReady(f"{url}{ready_path}"),
        # the serving node has no such path: its 404 is a sign of life too
        alive=HttpReady(f"{url}/healthz"),
        log=state_dir / "logs" / f"{name}.log",
        env=env,
        depends_on=waits,
        ends_before=_ASKS.get(name, ()),
        url=url,
        ports=(port,),
        vital=name in _ANSWERS,
        ready_within_s=ready_within_s,
        stop_within_s=20.0,
    )
