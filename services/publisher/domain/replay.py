"""What the release log amounts to: the chains, and what waits for a person."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from reefcommon.events import Event, Release, ReleasePending, ReleasePublished, ReleaseRejected


@dataclass(slots=True)
class Replay:
    """Releases in the order in which they advance, and pending ones."""

    published: dict[tuple[str, str], Release] = field(default_factory=dict)
    pending: dict[tuple[str, str], Release] = field(default_factory=dict)

    def chains(self) -> list[Release]:
        """Every published release; within a scenario parents come before children."""
        return sorted(
            self.published.values(), key=lambda release: (release.scenario, release.sequence)
        )


def linked(releases: Iterable[Release]) -> list[Release]:
    """The chain of these releases from its first one on, as far as each follows from the one before; the oldest first."""
    chain: list[Release] = []
    for release in sorted(releases, key=lambda release: release.sequence):
        if release.parent_id == (chain[-1].release_id if chain else None):
            chain.append(release)
    return chain


def replay(events: Iterable[Event]) -> Replay:
    """Fold the log. Repeats have no effect; a pending release ends when it is published, or when its candidate is turned down."""
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
            case ReleaseRejected(candidate_id=str(candidate)):
                ended = [
                    key
                    for key, release in state.pending.items()
                    if release.candidate_id == candidate
                ]
                for key in ended:
                    del state.pending[key]
    return state
