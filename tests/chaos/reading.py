"""What the invariants are stated with, and how they read the facts."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from reefcommon.events import Event, InferenceRecorded, ReleasePublished, StepCompleted
from tests.chaos.facts import Answer, Facts, Happened, Logged


@dataclass(frozen=True, slots=True)
class Stated:
    """One invariant: its words, over how many things it was looked at, and the contradictions."""

    name: str
    says: str
    looked_at: int
    broken: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether nothing contradicts it."""
        return not self.broken


E = TypeVar("E", bound=Event)


def of_type(facts: Facts, kind: type[E]) -> Iterator[tuple[Logged, E]]:
    """The events of one type, with their places."""
    for logged in facts.log:
        if isinstance(logged.event, kind):
            yield logged, logged.event


def acknowledged(facts: Facts) -> dict[str, Answer]:
    """What clients hold: receipt -> the first whole answer under it."""
    held: dict[str, Answer] = {}
    for answer in facts.answers:
        if answer.complete and answer.receipt:
            held.setdefault(answer.receipt, answer)
    return held


def content_of(event: InferenceRecorded) -> str:
    """The text of an exchange's answer, as its client was given it."""
    choices = (event.response or {}).get("choices") or [{}]
    return str((choices[0].get("message") or {}).get("content") or "")


def steps(facts: Facts) -> dict[str, StepCompleted]:
    """Completed jobs by id; a repeat of the event is the same job."""
    return {event.event_id: event for _, event in of_type(facts, StepCompleted)}


def chains(facts: Facts) -> tuple[dict[str, list[ReleasePublished]], list[str]]:
    """Releases of each scenario in the order of the log; and repeats that differ."""
    seen: dict[tuple[str, str], str] = {}
    found: dict[str, list[ReleasePublished]] = defaultdict(list)
    differ = []
    for _, event in of_type(facts, ReleasePublished):
        key, body = (event.scenario, event.release.release_id), event.release.model_dump_json()
        if key not in seen:
            found[event.scenario].append(event)
        elif seen[key] != body:
            differ.append(
                f"twice: release {event.release.release_id} was published with different contents"
            )
        seen.setdefault(key, body)
    return found, differ


def at_of(event: Event) -> float:
    """When it happened, as Unix time."""
    return event.at.timestamp()


def describe(fault: Happened) -> str:
    """One fault in words."""
    return f"fault {fault.number} ({fault.kind} {fault.mode or '+'.join(fault.parts)})"
