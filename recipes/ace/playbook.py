"""The playbook of ACE: bullets of a tree, their counters, and the changes of a window. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.feedback_rules.recipe import normalise
from reefcommon.harness.tree import Entry, Mutation, Tree
from reefcommon.ids import digest

PREFIX = "ace-"


@dataclass(frozen=True, slots=True)
class Count:
    helpful: int = 0
    harmful: int = 0

    @property
    def worth(self) -> int:
        return self.helpful - self.harmful


Counts = Mapping[str, Count]


def bullet_id(text: str) -> str:
    # By its words: a bullet that is added again is the same bullet, with its counters.
    return PREFIX + digest("bullet", normalise(text), length=8)


def bullets(tree: Tree) -> dict[str, Entry]:
    return {entry.id: entry for entry in tree if entry.id.startswith(PREFIX)}


def marked(counts: Counts, known: Mapping[str, Entry], reflection: Mapping[str, Any]) -> Counts:
    """Return the counts after a reflection has called bullets helpful or harmful."""
    result = dict(counts)
    for side in ("helpful", "harmful"):
        named = reflection.get(side)
        for name in dict.fromkeys(named if isinstance(named, list) else ()):
            if isinstance(name, str) and name in known:
                old = result.get(name, Count())
                more = {side: getattr(old, side) + 1}
                result[name] = Count(**{"helpful": old.helpful, "harmful": old.harmful, **more})
    return result


def harmful(known: Mapping[str, Entry], counts: Counts, limit: int) -> list[str]:
    """Return the bullets whose harm exceeds their help by `limit`."""
    return [name for name in known if counts.get(name, Count()).worth <= -limit]


def delta(
    known: Mapping[str, Entry], counts: Counts, new: Sequence[str], *, limit: int, most: int
) -> tuple[Mutation, ...]:
    """Return the changes: harmful bullets go, new ones come, the least useful make room."""
    gone = dict.fromkeys(harmful(known, counts, limit), "it did harm")
    added = {bullet_id(text): text for text in new}
    added = {name: text for name, text in added.items() if name not in known}
    kept = [name for name in known if name not in gone]
    # The order of the tree is that of age: of equals the oldest goes.
    least = sorted(kept, key=lambda name: counts.get(name, Count()).worth)
    for name in least[: max(0, len(kept) + len(added) - most)]:
        gone[name] = "the least useful makes room"
    removed = [Mutation("remove", name, reason=why) for name, why in gone.items()]
    created = [
        Mutation("create", name, {"kind": "rules", "config": {"text": text}}, "a new bullet")
        for name, text in list(added.items())[:most]
    ]
    return (*removed, *created)
