"""Traffic for a log: conversations with token arrays, retries, tags, reports of every kind, steps, releases, and bytes that are no event.

Seeded: the same count and seed always give the same events, in the order in which they are sent.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiokafka import AIOKafkaProducer

from reefcommon import ids, topics
from reefcommon.events import (
    Event,
    FeedbackReported,
    InferenceRecorded,
    Release,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    SampleRefused,
    ServingSynced,
    StepCompleted,
)
from reefkit.redis_heads import RedisReleaseHeads
from tests.experience.factory import assistant, inference, report, user

SCENARIOS = ("support", "coding", "default")
PACE_S = 0.02


@dataclass(frozen=True, slots=True)
class Sent:
    """One message of the log."""

    topic: str
    key: bytes
    value: bytes
    at: datetime
    event: Event | None = None


@dataclass(slots=True)
class Talk:
    """One conversation that goes on."""

    scenario: str
    shard: str
    tag: str | None
    said: list[dict[str, Any]]
    tokens: list[int]
    records: list[str] = field(default_factory=list)


class Traffic:
    """Makes events one after another."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self.random = random.Random(seed)
        self.start = datetime(2026, 2, 1, tzinfo=UTC)
        self.number = 0
        self.talks: list[Talk] = []
        self.heads: dict[str, Release] = {}
        self.late: list[tuple[int, Sent]] = []
        self.reports: list[FeedbackReported] = []
        self.tokens = [[self.random.randrange(49152) for _ in range(64)] for _ in range(200)]
        self.logprobs = [[-3 * self.random.random() for _ in range(48)] for _ in range(50)]

    @property
    def at(self) -> datetime:
        return self.start + timedelta(seconds=self.number * PACE_S)

    def __iter__(self) -> Iterator[Sent]:
        for scenario in SCENARIOS:
            yield self.release(scenario)
        while self.number < self.count:
            while self.late and self.late[0][0] <= self.number:
                yield self.late.pop(0)[1]
                self.number += 1
            kind = self.random.random()
            if kind < 0.72:
                yield self.exchange()
            elif kind < 0.94:
                yield self.report()
            elif kind < 0.97:
                yield self.learning()
            elif kind < 0.999:
                yield self.release(self.random.choice(SCENARIOS))
            else:
                yield Sent(
                    topics.INFERENCES.name, b"0000", b'{"type": "inference.recorded.v1"}', self.at
                )
            self.number += 1
        for _, sent in self.late:
            yield sent

    def exchange(self) -> Sent:
        again = self.talks and self.random.random() < 0.7
        talk = self.random.choice(self.talks[-400:]) if again else self.talk()
        retry = bool(talk.records) and self.random.random() < 0.05
        if talk.records and not retry:
            talk.said = [*talk.said, user(f"go on {self.number}")]
            talk.tokens = [*talk.tokens, *self.random.choice(self.tokens)[:8]]
        sampled = self.random.choice(self.tokens)[:48]
        event = inference(
            talk.said,
            f"answer {self.number}" if not retry else "once more",
            record_id=self.id("rec", talk.shard),
            scenario=talk.scenario,
            prompt=talk.tokens,
            sampled=sampled,
            logprobs=self.random.choice(self.logprobs),
            session_tag=talk.tag,
            outcome=self.random.choices(("ok", "aborted", "failed"), (0.96, 0.02, 0.02))[0],
            load_id=self.heads[talk.scenario].load_id,
            release_id=self.heads[talk.scenario].release_id,
        ).model_copy(update={"at": self.at})
        talk.records.append(event.event_id)
        if not retry:
            talk.said = [*talk.said, assistant(f"answer {self.number}")]
            talk.tokens = [*talk.tokens, *sampled]
        if len(talk.said) > 12:
            self.talks.remove(talk)
        return self.send(event, topics.INFERENCES, talk.shard)

    def talk(self) -> Talk:
        scenario = self.random.choice(SCENARIOS)
        tag = f"tag-{self.number}" if self.random.random() < 0.2 else None
        # One in ten begins as an earlier one did, a little or a long time ago.
        first = f"question {self.number if self.random.random() < 0.9 else self.random.randrange(max(self.number, 1))}"
        talk = Talk(
            scenario,
            ids.shard_of(scenario, tag or first),
            tag,
            [user(first)],
            self.random.choice(self.tokens)[:20],
        )
        self.talks.append(talk)
        return talk

    def report(self) -> Sent:
        if self.reports and self.random.random() < 0.05:
            return self.send(self.random.choice(self.reports[-50:]), topics.FEEDBACK)
        open_talks = [talk for talk in self.talks[-200:] if talk.records]
        kind = self.random.random()
        if not open_talks or kind < 0.01:
            return self.send(self.said("rec-nobody", scenario="default"), topics.FEEDBACK)
        talk = self.random.choice(open_talks)
        if kind < 0.02:
            other = "default" if talk.scenario != "default" else "coding"
            return self.send(self.said(talk.records[-1], scenario=other), topics.FEEDBACK)
        references = talk.records if kind < 0.3 else talk.records[-1:]
        made = self.said(*dict.fromkeys(references), scenario=talk.scenario)
        self.reports.append(made)
        sent = self.send(made, topics.FEEDBACK)
        if kind > 0.97:  # a report that comes before its record
            ahead = self.exchange()
            assert isinstance(ahead.event, InferenceRecorded)
            self.late.append((self.number + self.random.randrange(5, 200), ahead))
            self.late.sort(key=lambda one: one[0])
            early = self.said(ahead.event.event_id, scenario=ahead.event.scenario)
            return self.send(early, topics.FEEDBACK)
        return sent

    def said(self, *references: str, scenario: str) -> FeedbackReported:
        shard = ids.shard_in(references[0]) or "0000"
        made = report(
            *references,
            score=self.random.random(),
            scenario=scenario,
            report_id=self.id("rep", shard),
            metadata={"n": self.number},
        )
        return made.model_copy(update={"at": self.at})

    def learning(self) -> Sent:
        scenario = self.random.choice(SCENARIOS)
        base = {"at": self.at, "scenario": scenario, "recipe": "sao"}
        if self.random.random() < 0.5:
            return self.send(
                SampleRefused(
                    event_id=f"ref-{self.number}",
                    sample_id=f"smp-{self.number}",
                    reason="stale",
                    lag=3,
                    **base,
                ),
                topics.TRAINING,
            )
        step = StepCompleted(
            event_id=f"job-{self.number}", step=self.number, base_release_id=self.heads[scenario].release_id, sample_ids=("smp-1",),
            metrics={"loss": self.random.random()}, duration_s=1.0, **base,
        )  # fmt: skip
        return self.send(step, topics.TRAINING)

    def release(self, scenario: str) -> Sent:
        head = self.heads.get(scenario)
        kind = self.random.random()
        if head is not None and kind < 0.5:
            return self.send(self.other(scenario, head, kind), topics.RELEASES)
        sequence = 0 if head is None else head.sequence + 1
        made = self.next_release(scenario, head, sequence)
        self.heads[scenario] = made
        return self.send(
            ReleasePublished(event_id=made.release_id, at=self.at, scenario=scenario, release=made),
            topics.RELEASES,
        )

    def other(self, scenario: str, head: Release, kind: float) -> Event:
        base = {"at": self.at, "scenario": scenario}
        if kind < 0.1:
            return ReleasePending(
                event_id=f"cand-{self.number}",
                release=self.next_release(scenario, head, head.sequence + 1, "p"),
                **base,
            )
        if kind < 0.2:
            return ReleaseRejected(
                event_id=f"rej-{self.number}",
                outcome="rejected",
                reason="worse",
                candidate_id=f"c-{self.number}",
                **base,
            )
        return ServingSynced(
            event_id=f"syn-{head.release_id}-{scenario}",
            release_id=head.release_id,
            load_id=head.load_id,
            node="n",
            duration_ms=self.number,
            **base,
        )

    def next_release(
        self, scenario: str, head: Release | None, sequence: int, mark: str = ""
    ) -> Release:
        return Release(
            release_id=f"r{sequence}-{scenario}-{self.number}{mark}", scenario=scenario, sequence=sequence,
            parent_id=head.release_id if head else None, kind="lora" if head else "base", content_id=f"lora-{self.number}",
            operation="training" if head else "creation", load_id=f"inc:{sequence}", candidate_id=f"cand-{self.number}", created_at=self.at,
        )  # fmt: skip

    def id(self, kind: str, shard: str) -> str:
        stamp = ids.time_ordered_hex(int(self.at.timestamp() * 1000), self.random.randbytes(10))
        return f"{kind}-{stamp}-{shard}"

    def send(self, event: Event, topic: topics.Topic, shard: str | None = None) -> Sent:
        if topic is topics.FEEDBACK:
            shard = ids.shard_in(event.event_id)
        return Sent(
            topic.name,
            (shard or event.scenario).encode(),
            event.model_dump_json(exclude_none=True).encode(),
            self.at,
            event,
        )


async def fill(
    bootstrap: str, traffic: Traffic, redis: Any = None, *, releases: bool = True
) -> int:
    """Send it all, and keep the heads as the publisher would. Returns how many messages there were."""
    heads = RedisReleaseHeads(redis) if redis is not None else None
    count = 0
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=False, linger_ms=5
    ) as producer:
        waiting = []
        for sent in traffic:
            if sent.topic == topics.RELEASES.name and not releases:
                continue
            stamp = int(sent.at.timestamp() * 1000)
            waiting.append(
                await producer.send(sent.topic, sent.value, key=sent.key, timestamp_ms=stamp)
            )
            if heads is not None and isinstance(sent.event, ReleasePublished):
                await heads.advance(sent.event.release)
            elif heads is not None and isinstance(sent.event, ReleasePending):
                await heads.put_pending(sent.event.release)
            count += 1
            if len(waiting) >= 1000:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
    return count
