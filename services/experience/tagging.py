"""Whether clients name their sessions, in the scenarios whose recipes want turns or sessions."""

from dataclasses import dataclass, field

import structlog
from prometheus_client import Counter

log = structlog.get_logger()

EXCHANGES = Counter(
    "reef_unit_exchanges_total",
    "exchanges of scenarios that want turns or sessions, by whether a tag names their session",
    ["scenario", "session"],
)
AT_LEAST, WINDOW, MOST = 20, 200, 0.5


@dataclass(slots=True)
class SessionTags:
    """The share of untagged exchanges by scenario, over about the last WINDOW."""

    _counts: dict[str, tuple[float, float]] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def saw(self, scenario: str, *, tagged: bool) -> None:
        """Count an exchange; warn once of a scenario whose clients mostly send no tag."""
        EXCHANGES.labels(scenario, "tagged" if tagged else "untagged").inc()
        untagged, total = self._counts.get(scenario, (0.0, 0.0))
        counts = untagged + (not tagged), total + 1
        if counts[1] >= WINDOW:  # older exchanges count half from here on
            counts = counts[0] / 2, counts[1] / 2
        self._counts[scenario] = counts
        if scenario not in self._warned and (words := self._words(scenario)):
            self._warned.add(scenario)
            log.warning("sessions_untagged", scenario=scenario, reason=words)

    def facts(self) -> dict[str, str]:
        """Return the words of a warning by scenario, if its clients mostly send no tag."""
        found = {scenario: self._words(scenario) for scenario in sorted(self._counts)}
        return {scenario: words for scenario, words in found.items() if words}

    def _words(self, scenario: str) -> str:
        untagged, total = self._counts[scenario]
        if total < AT_LEAST or untagged <= MOST * total:
            return ""
        return (
            f"{untagged / total:.0%} of the exchanges name no session (x-reef-tag-session): a turn"
            " whose history the client rewrites is not found"
        )
