"""Events as the gateway makes them, and fakes of the ports."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic_core import to_json

from reefcommon import ids, topics
from reefcommon.errors import Unavailable
from reefcommon.events import (
    BodyRef,
    Completion,
    Event,
    FeedbackReported,
    InferenceRecorded,
    WeightSpan,
)
from reefkit.bodies import BodyMissing
from services.experience.ports import Arrival

T0 = datetime(2026, 1, 5, 12, 0, 0, 123456, tzinfo=UTC)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def inference(
    messages: Sequence[Mapping[str, Any]] = (user("hello"),),
    answer: str | Mapping[str, Any] = "hi",
    *,
    record_id: str | None = None,
    scenario: str = "default",
    at: float = 0.0,
    prompt: Sequence[int] = (1, 2, 3),
    sampled: Sequence[int] = (4, 5),
    logprobs: Sequence[float] | None = None,
    temperature: float = 1.0,
    versions: Sequence[str] = (),
    **fields: Any,
) -> InferenceRecorded:
    """One exchange; `at` is seconds after T0."""
    message = assistant(answer) if isinstance(answer, str) else dict(answer)
    values = {
        "event_id": record_id or ids.new_record_id(ids.shard_of(scenario, str(messages[0]))),
        "at": T0 + timedelta(seconds=at),
        "scenario": scenario,
        "outcome": "ok",
        "release_id": "rel-1",
        "load_id": "inc:1",
        "model": "reef",
        "engine": "http://engine",
        "request": {"model": "reef", "messages": list(messages), "temperature": temperature},
        "response": {
            "id": "c",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        },
        "prompt_token_ids": tuple(prompt),
        "completions": (
            Completion(
                index=0,
                finish_reason="stop",
                token_ids=tuple(sampled),
                logprobs=tuple([-0.5] * len(sampled) if logprobs is None else logprobs),
                weight_versions=tuple(
                    WeightSpan(version=version, start=i, end=i + 1)
                    for i, version in enumerate(versions)
                ),
            ),
        ),
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)},
        "duration_ms": 12.5,
    }
    return InferenceRecorded(**{**values, **fields})


def report(
    *references: str,
    score: float | None = 1.0,
    report_id: str | None = None,
    at: float = 1.0,
    **fields: Any,
) -> FeedbackReported:
    """A report on these receipts."""
    content = {
        "references": references,
        "score": score,
        "feedback": fields.get("feedback"),
        "metadata": fields.get("metadata", {}),
    }
    values = {
        "event_id": report_id
        or ids.new_report_id(ids.shard_in(references[0]) or "0000" if references else "0000"),
        "at": T0 + timedelta(seconds=at),
        "scenario": "default",
        "content_digest": ids.digest(content),
        **content,
    }
    return FeedbackReported(**{**values, **fields})


def arrive(event: Event, offset: int = 0) -> Arrival:
    """The event as it comes from its topic."""
    topic = topics.FEEDBACK if isinstance(event, FeedbackReported) else topics.INFERENCES
    return Arrival(
        topic.name, 0, offset, b"0000", event.model_dump_json(exclude_none=True).encode(), event
    )


@dataclass
class Published:
    """EventPublisher that keeps what it gets, and may refuse a number of times."""

    events: list[Event] = field(default_factory=list)
    failures: int = 0

    async def publish(self, event: Event, topic: topics.Topic, *, shard: str | None = None) -> None:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise Unavailable("no broker")
        self.events.append(event)


@dataclass
class Graves:
    """DeadLetters in a list, which may refuse a number of times."""

    buried: list[tuple[Arrival, str]] = field(default_factory=list)
    failures: int = 0

    async def bury(self, arrival: Arrival, reason: str, *, waited: bool = False) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("no broker")
        self.buried.append((arrival, reason))


@dataclass
class Bodies:
    """BodyStore in a dict."""

    kept: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    async def read(self, ref: BodyRef) -> bytes:
        if ref.sha256 not in self.kept:
            raise BodyMissing("not there")
        return to_json(self.kept[ref.sha256])


@dataclass
class Clock:
    """A clock that stands until it is moved."""

    time: datetime = T0

    def __call__(self) -> datetime:
        self.time += timedelta(microseconds=1)
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class Flaky:
    """A store in front of another one: the named methods raise Unavailable as often as told, before or after the effect."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self.away = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.away or self._due(self.before, name):
                raise Unavailable(f"{name}: store away")
            result = await method(*args, **kwargs)
            if self._due(self.after, name):
                raise Unavailable(f"{name}: lost the answer")
            return result

        return call

    @staticmethod
    def _due(counts: dict[str, int], name: str) -> bool:
        counts[name] = counts.get(name, 0) - 1
        return counts[name] >= 0
