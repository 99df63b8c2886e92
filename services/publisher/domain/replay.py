"""The chains, the pending releases and the holds that the release log describes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from reefcommon.events import (
    Event,
    Release,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    ScenarioHeld,
)


@dataclass(slots=True)
class Replay:
    published: dict[tuple[str, str], Release] = field(default_factory=dict)
    pending: dict[tuple[str, str], Release] = field(default_factory=dict)
    held: dict[str, str | None] = field(default_factory=dict)

    def chains(self) -> list[Release]:
        """Return every published release; in a scenario, parents come before children."""
        return sorted(self.published.values(), key=attrgetter("scenario", "sequence"))


def replay(events: Iterable[Event]) -> Replay:
    """Fold the log. Repeats have no effect.

    A pending release ends when it is published, or its candidate rejected.
    """
    state = Replay()
    for event in events:
        match event:
            case ReleasePublished(release=release):
                state.published[release.scenario, release.release_id] = release
                state.pending.pop((release.scenario, release.release_id), None)
            case ReleasePending(release=release) if (
                release.scenario,
                release.release_id,
            ) not in state.published:
                state.pending[release.scenario, release.release_id] = release
            case ScenarioHeld(scenario=scenario, reason=reason):
                state.held[scenario] = reason
            case ReleaseRejected(candidate_id=str(candidate)):
                state.pending = {
                    key: release
                    for key, release in state.pending.items()
                    if release.candidate_id != candidate
                }
    return state
