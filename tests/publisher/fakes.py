"""The outside of the publisher for its tests: nodes, a store, a log of events; each can fail, refuse, lie or kill at a chosen call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from reefcommon.artifacts import MANIFEST_NAME, Manifest, content_id, staged
from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.events import CandidateEvaluated, CandidateProposed, Evaluation, Event, Kind, Lineage, Verdict, utc_now
from reefcommon.ids import digest
from reefcommon.serving import Answer
from reefcommon.topics import Topic

E = TypeVar("E", bound=Event)


class Killed(BaseException):
    """The process ends here: nothing of ours may catch it."""


@dataclass
class Fuse:
    """Ends the process just before or just after the n-th effect."""

    left: int = -1
    after: bool = False
    calls: list[str] = field(default_factory=list)

    async def __call__(self, name: str, effect: Callable[[], Any]) -> Any:
        self.calls.append(name)
        dies = self.left == 0
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
    """A serving node. `down`: does not answer; `full`: refuses to load; `clings`: refuses to unload; `lies`: answers as another model."""

    url: str = "http://node-1"
    base: str = "reef"
    adapters: dict[str, str] = field(default_factory=dict)
    down: bool = False
    full: bool = False
    clings: bool = False
    lies: bool = False
    loads: list[str] = field(default_factory=list)

    def _up(self) -> None:
        if self.down:
            raise Unavailable(f"serving node {self.url} does not answer")

    async def models(self) -> dict[str, str | None]:
        self._up()
        return {self.base: "/base", **self.adapters}

    async def load_adapter(self, name: str, path: str) -> None:
        self._up()
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
        return [Answer("x", self.base if self.lies else model, "length")]

    async def prompt_logprobs(self, model: str, tokens: list[int], **_: Any) -> list[float]:
        raise AssertionError("the publisher asks for no log-probabilities")


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
    """Every content that was announced by `lora(...)` exists; a content in `damaged` does not match its digest."""

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
            manifest = Manifest(content_id=content, kind=kind, files=_files(data))
            (directory / "file").write_bytes(data + (b"!" if content in self.damaged else b""))
            (directory / MANIFEST_NAME).write_text(manifest.model_dump_json())
        return manifest


KNOWN: dict[str, tuple[Kind, bytes]] = {}


def _files(data: bytes) -> dict[str, str]:
    import hashlib

    return {"file": hashlib.sha256(data).hexdigest()}


def content(kind: Kind, seed: str) -> str:
    """The id of a content that the fake store holds."""
    data = seed.encode()
    found = content_id(kind, _files(data))
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
    evaluation = Evaluation(verdict=verdict, policy="score_comparison", reason=f"{verdict} it", head_release_id=base, wins=3)
    return CandidateEvaluated(
        event_id="evl-" + digest(candidate.event_id, base), at=utc_now(), scenario=scenario, candidate=candidate, evaluation=evaluation
    )
