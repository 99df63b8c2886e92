"""The latest rejected candidates and refused commands of each scenario, with their reasons."""

from collections import OrderedDict
from typing import Any

from reefcommon.events import Event, ReleaseRejected

KEPT = 200


class Rejections:
    """The latest KEPT of each scenario, filled from the log at the start.

    A repeat has no effect.
    """

    def __init__(self) -> None:
        self._of: dict[str, OrderedDict[str, ReleaseRejected]] = {}

    def hear(self, event: Event) -> None:
        if not isinstance(event, ReleaseRejected):
            return
        kept = self._of.setdefault(event.scenario, OrderedDict())
        kept[event.event_id] = event
        if len(kept) > KEPT:
            kept.popitem(last=False)

    def rows(self, scenario: str, limit: int) -> list[dict[str, Any]]:
        latest = sorted(
            self._of.get(scenario, OrderedDict()).values(), key=lambda event: event.at, reverse=True
        )
        return [
            event.model_dump(mode="json", exclude={"type", "traceparent"})
            for event in latest[:limit]
        ]
