"""The release chain: whole, the same in Redis, and what clients were answered under."""

from collections import Counter

from reefcommon.events import InferenceRecorded, ReleasePublished
from tests.chaos.facts import Facts
from tests.chaos.reading import Stated, acknowledged, chains, of_type


def chain_whole(facts: Facts) -> Stated:
    """Sequences without a gap, each release the only child of the one before."""
    found, broken = chains(facts)
    for scenario, events in found.items():
        releases = sorted((event.release for event in events), key=lambda release: release.sequence)
        children = Counter(release.parent_id for release in releases)
        broken += [
            f"fork: {parent} of {scenario} has {n} children"
            for parent, n in children.items()
            if n > 1
        ]
        for place, release in enumerate(releases):
            if release.sequence != place:
                broken.append(f"gap: {scenario} has no release {place}, but {release.release_id}")
                break
            if place and release.parent_id != releases[place - 1].release_id:
                broken.append(
                    f"fork: {release.release_id} of {scenario} follows {release.parent_id}, not {releases[place - 1].release_id}"
                )
    return Stated(
        "chain whole",
        "no gap and no fork in the release chain",
        sum(map(len, found.values())),
        tuple(broken),
    )


def heads_agree(facts: Facts) -> Stated:
    """Redis holds the chain that the log tells."""
    found, broken = chains(facts)[0], []
    for scenario in found.keys() | facts.heads.keys():
        told = tuple(
            event.release.release_id
            for event in sorted(found.get(scenario, []), key=lambda e: e.release.sequence)
        )
        kept = facts.heads.get(scenario)
        if kept is None:
            broken.append(f"Redis has no head of {scenario}")
        elif tuple(reversed(kept.chain)) != told:
            different = next(
                (
                    pair
                    for pair in zip(reversed(kept.chain), told, strict=False)
                    if pair[0] != pair[1]
                ),
                None,
            )
            broken.append(
                f"{scenario}: Redis has {len(kept.chain)} releases, the log {len(told)}; first difference: {different}"
            )
        elif told and kept.head != told[-1]:
            broken.append(f"{scenario}: the head in Redis is {kept.head}, in the log {told[-1]}")
    return Stated(
        "heads agree", "the head in Redis is the head in the log", len(found), tuple(broken)
    )


def answered_by_the_chain(facts: Facts) -> Stated:
    """What a client was told of its answer's release is a release, and is what was recorded."""
    releases = {event.release.release_id for _, event in of_type(facts, ReleasePublished)}
    recorded = {event.event_id: event.release_id for _, event in of_type(facts, InferenceRecorded)}
    broken, looked_at = [], 0
    for receipt, answer in acknowledged(facts).items():
        if answer.release_id:
            looked_at += 1
            if answer.release_id not in releases:
                broken.append(
                    f"{receipt} was answered under {answer.release_id}, which is no release"
                )
            elif receipt in recorded and recorded[receipt] != answer.release_id:
                broken.append(
                    f"{receipt} was answered under {answer.release_id} and recorded under {recorded[receipt]}"
                )
    return Stated(
        "answered by the chain",
        "every answer's release is a release of the chain",
        looked_at,
        tuple(broken),
    )
