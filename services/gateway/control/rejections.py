"""The latest rejected candidates and refused commands of each scenario, with their reasons."""

from typing import Any

from reefcommon.events import Event, ReleaseRejected

KEPT = 200


class Rejections:
    """The latest KEPT of each scenario, filled from the log at the start."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, ReleaseRejected]] = {}  # oldest first

    def hear(self, event: Event) -> None:
        if not isinstance(event, ReleaseRejected):
            return
        kept = self._of.setdefault(event.scenario, {})
        kept[event.event_id] = event  # a repeat has no effect
        if len(kept) > KEPT:
            del kept[next(iter(kept))]

    def rows(self, scenario: str, limit: int) -> list[dict[str, Any]]:
        kept = self._of.get(scenario, {}).values()
        latest = sorted(kept, key=lambda event: event.at, reverse=True)[:limit]
        hidden = {"type", "traceparent"}
        return [event.model_dump(mode="json", exclude=hidden) for event in latest]
