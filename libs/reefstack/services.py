"""The programs of Reef itself, each `python -m services.<name>`."""

import sys
from collections.abc import Mapping
from dataclasses import replace

from reefstack.spec import HttpReady, ProcessSpec, Site

TOPICS = "topics"  # not a program: the step that creates the topics
ENGINE = "engine"
# In starting order, each with its needs. Most start beside the serving node: to join a consumer
# group is mostly waiting, to load a model mostly work.
SERVICES: Mapping[str, tuple[str, ...]] = {
    # it loads weights into the node: never into a stranger's that answers on the same port
    "publisher": (TOPICS, "valkey", ENGINE),
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
# The others give way, and who works on candidates more than who keeps experience current. Linux
# weighs 5 with 335 and 10 with 110, beside 1024, so that all still get a share. The trainer's step
# process adds its own 3 (`REEF_TRAINER_NICENESS`).
_GIVES_WAY = {"experience": 5, "publisher": 5, "evaluator": 10, "trainer": 7, "harness": 10}


def engine(site: Site, *, served_as: str, adapters: int, env: Mapping[str, str]) -> ProcessSpec:
    """The embedded serving node. It may take minutes to load a model."""
    assert site.model_path is not None, "the model is prepared before the engine is planned"
    own = {
        "REEF_ENGINE_MODEL_PATH": str(site.model_path),
        "REEF_ENGINE_SERVED_MODEL_NAME": served_as,
        "REEF_ENGINE_HOST": "127.0.0.1",
        "REEF_ENGINE_PORT": str(site.ports[ENGINE]),
        "REEF_ENGINE_MAX_LORAS": str(adapters),
    }
    spec = service(ENGINE, site, env={**env, **own})
    # vLLM says at /health that it is ready
    return replace(spec, probe=HttpReady(f"{spec.url}/health"), ready_within_s=300.0)


def service(
    name: str, site: Site, *, env: Mapping[str, str], present: frozenset[str] = frozenset()
) -> ProcessSpec:
    """A service. It waits for those of its needs that this plan starts."""
    url = site.url(name)
    return ProcessSpec(
        name=name,
        argv=(sys.executable, "-m", f"services.{name}"),
        probe=HttpReady(f"{url}/readyz"),
        # the serving node has no such path: its 404 is a sign of life too
        alive=HttpReady(f"{url}/healthz"),
        log=site.log(name),
        env=env,
        depends_on=tuple(need for need in SERVICES.get(name, ()) if need in present),
        ends_before=_ASKS.get(name, ()),
        url=url,
        ports=(site.ports[name],),
        vital=name in _ANSWERS,
        niceness=_GIVES_WAY.get(name, 0),
        ready_within_s=180.0,
        stop_within_s=20.0,
    )
