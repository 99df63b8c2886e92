"""The learning loop's events in words."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated

from aiokafka import TopicPartition
from pydantic import Field, TypeAdapter, ValidationError

from reefcli.output import compared, counted
from reefcommon import events as e
from reefcommon import topics
from reefcommon.errors import Poison
from reefkit.bodies import BodyMissing, FilesystemBodies, whole_value
from reefkit.kafka_offsets import open_consumer, real_ends

LoopEvent = (
    e.StepCompleted | e.SampleRefused | e.CandidateProposed | e.CandidateEvaluated
    | e.ReleasePublished | e.ReleasePending | e.ReleaseRejected | e.ScenarioHeld | e.ServingSynced
    | e.DeadLettered | e.SignalComputed
)  # fmt: skip
_EVENT: TypeAdapter[LoopEvent] = TypeAdapter(Annotated[LoopEvent, Field(discriminator="type")])
_SHOWN = {"reward_mean": "reward {:.2f}", "lag_mean": "lag {:.1f}", "pg_clipfrac": "masked {:.0%}"}
_NEAR = 500  # records of a partition, more than come during a start
_TOPICS = (topics.TRAINING, topics.CANDIDATES, topics.EVALUATIONS, topics.RELEASES)


async def follow(
    bootstrap: str,
    bodies: FilesystemBodies,
    since: datetime | None = None,
    *,
    signals: bool = False,
) -> AsyncIterator[LoopEvent]:
    """Yield the loop's events and dead letters, in the order of each partition.

    Reads without a consumer group: it moves no offsets. With `since` it begins near the end of the
    log, and yields the events after that time. With `signals` the recipes' signals are among them.
    """
    dead = [topic.dead for topic in topics.ALL]
    more = [topics.SIGNALS.name] if signals else []
    names = [*(topic.name for topic in _TOPICS), *more, *dead]
    ends: dict[TopicPartition, int] = {}
    for found in (await real_ends(bootstrap, names)).values() if since is not None else ():
        ends |= found
    async with open_consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        if since is None:
            consumer.subscribe(names)
        else:
            consumer.assign([*ends])
            for place, end in ends.items():
                consumer.seek(place, max(end - _NEAR, 0))
        async for record in consumer:
            try:
                value = await whole_value(record.value, record.headers, bodies)
                event = _EVENT.validate_json(value)
            # Another type of event on the same topic, or a large event without its body.
            except (ValidationError, BodyMissing, Poison):
                continue
            if since is None or event.at > since:
                yield event


def describe(event: LoopEvent, *, means: bool = True) -> str | None:
    """Return an event's line; None if it needs none. `means`: with a verdict's scores."""
    match event:
        case e.StepCompleted():
            return _step(event)
        case e.CandidateEvaluated():
            found = event.evaluation
            took = f"{found.policy}, {found.duration_s:.1f} s"
            return f"verdict  {found.verdict}: {_why(found, means=means)} ({took})"
        case e.ReleasePublished():
            release = event.release
            return f"release  {release.release_id} ({release.operation}) serves from now on"
        case e.ReleasePending():
            return f"release  {event.release.release_id} waits for `reef promote`"
        case e.ReleaseRejected() if event.outcome != "rejected":  # else its verdict has said it
            return f"no release: {event.outcome}, {event.reason}"
        case e.ScenarioHeld(reason=reason):
            held = "not held any more" if reason is None else f"held, winners wait: {reason}"
            return f"{event.scenario} is {held}"
        case e.DeadLettered():
            place = f"{event.topic} [{event.partition}] {event.offset}"
            reason = event.reason.splitlines()[0][:160] if event.reason else ""
            return f"dead letter of {event.group}, {place}: {reason} (`reef dlq list`)"
        case _:
            return None


def _step(event: e.StepCompleted) -> str:
    found = event.metrics
    shown = [text.format(found[name]) for name, text in _SHOWN.items() if name in found]
    parts = ", ".join([counted(len(event.sample_ids), "sample"), *shown])
    outcome = "candidate" if event.candidate_id else event.reason or "no candidate"
    return f"step {event.step:<4} {parts}, {event.duration_s:.1f} s: {outcome}"


def _why(found: e.Evaluation, *, means: bool) -> str:
    if found.candidate_score is None or found.head_score is None:
        return found.reason
    tasks = f"{counted(found.wins, 'task')} won, {found.losses} lost, {found.ties} tied"
    scores = " against ".join(compared((found.candidate_score, found.head_score)))
    shown = f" (means {scores})" if means else ""
    strength = f", evidence {found.strength}" if found.strength else ""
    rule = found.reason.partition("; ")[2] if found.policy != "always" else ""
    return f"{tasks}{shown}{strength}; rule: {rule or found.reason}"
