"""The programs of Reef itself: the serving node and the six services, each `python -m services.<name>`.

Ready when `/readyz` answers 200; the serving node says it at `/health`, as vLLM does.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from reefstack.spec import HttpReady, ProcessSpec

TOPICS = "topics"  # not a program: the step that creates the topics, which others wait for
ENGINE = "engine"
# In the order in which they start; each with what it waits for, where that is part of the same plan. All start beside the serving
# node: joining a consumer group is mostly waiting, loading a model mostly work, and who needs the node is unready until it answers.
SERVICES: Mapping[str, tuple[str, ...]] = {
    "publisher": (TOPICS, "valkey"),
    "experience": (TOPICS,),
    "evaluator": (TOPICS, "valkey"),
    "trainer": (TOPICS, "valkey"),
    "harness": (TOPICS, "valkey"),
    "gateway": (TOPICS, "valkey"),
}
# Whoever asks others ends before them: the gateway first, so that nothing comes in any more, the serving node last.
_ASKS: Mapping[str, tuple[str, ...]] = {
    "gateway": (ENGINE, "publisher", "experience", "trainer", "evaluator", "harness"),
    "publisher": (ENGINE,),
    "evaluator": (ENGINE,),
    "harness": (ENGINE,),
    "trainer": (ENGINE,),
}
# Without these nobody is answered. What the others would have done lies in the log until they are back.
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
    """The embedded serving node: loading the model takes some seconds, so it is given minutes."""
    own = {
        "REEF_ENGINE_MODEL_PATH": str(model_path),
        "REEF_ENGINE_SERVED_MODEL_NAME": served_as,
        "REEF_ENGINE_HOST": "127.0.0.1",
        "REEF_ENGINE_PORT": str(port),
        "REEF_ENGINE_MAX_LORAS": str(adapters),
    }
    return _python(
        ENGINE, port, state_dir, {**env, **own}, (), ready_within_s=300.0, ready_path="/health"
    )


def service(
    name: str, port: int, state_dir: Path, *, env: Mapping[str, str], present: frozenset[str]
) -> ProcessSpec:
    """One of the six. Waits only for those that this plan starts (`present`); a real system elsewhere is simply there."""
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
        alive=HttpReady(
            f"{url}/healthz"
        ),  # the serving node has no such path: its 404 is a sign of life too
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
