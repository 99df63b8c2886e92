"""The outside of the publisher for its tests: nodes, a store, a log of events; each can fail,
refuse, lie or kill at a chosen call.
"""

import asyncio
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from reefcommon.artifacts import MANIFEST_NAME, Manifest, content_id, staged
from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.events import (
    CandidateEvaluated,
    CandidateProposed,
    Evaluation,
    Event,
    Kind,
    Lineage,
    Verdict,
    utc_now,
)
from reefcommon.ids import digest
from reefcommon.serving import Answer, NodeWeights
from reefcommon.topics import Topic
from services.publisher.weight_files import WeightFiles

E = TypeVar("E", bound=Event)


class Killed(BaseException):
    """The process ends here: nothing of ours may catch it."""


@dataclass
class Fuse:
    """Ends the process just before or just after the n-th effect."""

    left: int = -1
    after: bool = False
    calls: list[str] = field(default_factory=list)
    blown: bool = False

    async def __call__(self, name: str, effect: Callable[[], Any]) -> Any:
        if self.blown:
            raise Killed("it is dead already")
        self.calls.append(name)
        dies = self.left == 0
        self.blown = dies
        self.left -= 1
        if dies and not self.after:
            raise Killed(name)
        result = await effect()
        if dies:
            raise Killed(name)
        return result


class Fused:
    """Passes calls through the fuse; reads go past it."""

    def __init__(self, inner: Any, fuse: Fuse, *effects: str) -> None:
        self._inner, self._fuse, self._effects = inner, fuse, effects

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in self._effects:
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._fuse(name, lambda: attribute(*args, **kwargs))

        return call


@dataclass
class FakeNode:
    """A serving node. `down`: does not answer; `full`: refuses to load; `clings`: refuses to
    unload; `lies`: answers as another model; `hangs`: takes a load and never says how it
    went.
    """

    url: str = "http://node-1"
    base: str = "reef"
    adapters: dict[str, str] = field(default_factory=dict)
    down: bool = False
    full: bool = False
    clings: bool = False
    lies: bool = False
    hangs: bool = False
    loads: list[str] = field(default_factory=list)
    version: str = "base"
    tensors: dict[str, str] = field(default_factory=dict)
    coming: dict[str, str] | None = None
    paused: bool = False
    fails: Callable[[str], None] = lambda _step: None
    """Called with the name of each step of a weight update, `before` and `after` it; what it
    raises, the node raises.
    """
    steps: list[str] = field(default_factory=list)

    def _up(self) -> None:
        if self.down:
            raise Unavailable(f"serving node {self.url} does not answer")

    async def models(self) -> dict[str, str | None]:
        self._up()
        return {self.base: "/base", **self.adapters}

    async def load_adapter(self, name: str, path: str) -> None:
        self._up()
        if self.hangs:
            await asyncio.Event().wait()
        if self.adapters.get(name) == path:
            return
        if self.full:
            raise Poison(f"{self.url} refused: no slot for {name}")
        assert (Path(path) / MANIFEST_NAME).is_file()
        self.adapters[name] = path
        self.loads.append(name)

    async def unload_adapter(self, name: str) -> None:
        self._up()
        if name in self.adapters and self.clings:
            raise Transient(f"{self.url} refuses to unload {name}: requests are running")
        self.adapters.pop(name, None)

    async def chat(self, model: str, messages: list[dict[str, Any]], **params: Any) -> list[Answer]:
        self._up()
        if model != self.base and model not in self.adapters:
            raise Poison(f"{self.url} has no model {model}")
        assert not self.paused, "a request to a paused node would wait for ever"
        version = model if model in self.adapters else self.version
        return [Answer("x", self.base if self.lies else model, "length", weight_version=version)]

    async def prompt_logprobs(self, model: str, tokens: list[int], **_: Any) -> list[float]:
        raise AssertionError("the publisher asks for no log-probabilities")

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._up()
        self.fails(f"before {name}")
        self.steps.append(name)
        yield
        self.fails(f"after {name}")

    async def pause(self, *, timeout_s: float) -> None:
        with self._step("pause"):
            self.paused = True

    async def resume(self, *, timeout_s: float) -> None:
        with self._step("resume"):
            self.paused = False

    async def is_paused(self) -> bool:
        self._up()
        return self.paused

    async def weights(self, *, tensors: bool = False, timeout_s: float = 10.0) -> NodeWeights:
        self._up()
        if tensors:
            self.fails("before verify")
        return NodeWeights(self.version, self.tensors if tensors else {})

    async def world_size(self) -> int:
        return 1

    async def meet(self, host: str, port: int, world_size: int, *, timeout_s: float) -> None:
        raise AssertionError("nobody meets here")

    async def start_update(self, *, timeout_s: float) -> None:
        with self._step("start"):
            assert self.paused
            self.coming = {}

    async def update(self, info: Mapping[str, Any], *, timeout_s: float) -> None:
        with self._step("transfer"):
            assert self.coming is not None
            self.coming |= WeightFiles.read(Path(info["weights_path"])).digests()

    async def finish_update(self, version: str, *, timeout_s: float) -> None:
        with self._step("finish"):
            assert self.coming
            self.tensors, self.coming, self.version = self.coming, None, version

    async def reset_prefix_cache(self, *, timeout_s: float) -> None:
        with self._step("reset"):
            pass


@dataclass
class FakeEvents:
    """What was published, in order."""

    sent: list[Event] = field(default_factory=list)
    down: bool = False

    async def publish(self, event: Event, topic: Topic, *, shard: str | None = None) -> None:
        if self.down:
            raise Unavailable("the broker did not acknowledge")
        assert isinstance(event, topic.events)
        self.sent.append(event)

    async def read(self) -> list[Event]:
        return list(self.sent)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.sent if isinstance(event, kind)]


class FakeStore:
    """Every content that was announced by `lora(...)` exists; a content in `damaged` does not match
    its digest.
    """

    def __init__(self) -> None:
        self.damaged: set[str] = set()
        self.away = False

    def put(self, tree: Path, manifest: Manifest, scenario: str) -> str:
        raise AssertionError("the publisher stores nothing")

    def get(self, content: str, scenario: str, destination: Path) -> Manifest:
        if self.away:
            raise Unavailable("the artifact store does not answer")
        with staged(destination) as directory:
            seed = KNOWN.get(content)
            if seed is None:
                raise Poison(f"no content {content!r}")
            kind, data = seed
            manifest = Manifest(content_id=content, kind=kind, files=_files(kind, data))
            [name] = manifest.files
            (directory / name).write_bytes(data + (b"!" if content in self.damaged else b""))
            (directory / MANIFEST_NAME).write_text(manifest.model_dump_json())
        return manifest


KNOWN: dict[str, tuple[Kind, bytes]] = {}


def _files(kind: Kind, data: bytes) -> dict[str, str]:
    name = {"checkpoint": "model.safetensors", "routing": "routing.json"}.get(kind, "file")
    return {name: hashlib.sha256(data).hexdigest()}


def safetensors(**tensors: float) -> bytes:
    """A file with one float32 number a tensor."""
    offsets = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i, name in enumerate(tensors)
    }
    header = json.dumps(offsets).encode()
    return (
        struct.pack("<Q", len(header))
        + header
        + struct.pack(f"<{len(tensors)}f", *tensors.values())
    )


def content(kind: Kind, seed: str) -> str:
    """The id of a content that the fake store holds."""
    data = (
        safetensors(a=float(sum(seed.encode())), b=1.0) if kind == "checkpoint" else seed.encode()
    )
    found = content_id(kind, _files(kind, data))
    KNOWN[found] = (kind, data)
    return found


def evaluated(
    scenario: str,
    base: str,
    seed: str = "a",
    *,
    kind: Kind = "lora",
    verdict: Verdict = "select",
    content_id: str | None = None,
    recipe: str = "recipes.sao.recipe:SAORecipe",
) -> CandidateEvaluated:
    """The verdict on a candidate of this seed."""
    candidate = CandidateProposed(
        event_id="cnd-" + digest(scenario, base, seed),
        at=utc_now(),
        scenario=scenario,
        kind=kind,
        content_id=content_id or content(kind, seed),
        base_release_id=base,
        metrics={"loss": 0.5},
        lineage=Lineage(recipe=recipe, sample_ids=("s1",)),
    )
    evaluation = Evaluation(
        verdict=verdict,
        policy="score_comparison",
        reason=f"{verdict} it",
        head_release_id=base,
        wins=3,
    )
    return CandidateEvaluated(
        event_id="evl-" + digest(candidate.event_id, base),
        at=utc_now(),
        scenario=scenario,
        candidate=candidate,
        evaluation=evaluation,
    )
