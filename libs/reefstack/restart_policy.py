"""Events of the programs of the stack, and how often a program may start."""

from dataclasses import dataclass
from typing import Literal

EventKind = Literal[
    "planned", "starting", "waiting", "progress", "ready", "died", "restarting", "stopping",
    "stopped", "note",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StackEvent:
    """An event for the user. `fraction` (0..1) belongs to `progress`; a `note` is shown once."""

    name: str
    kind: EventKind
    text: str = ""
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often and how soon a program that ended is started again."""

    # The first restart is at once. The pause grows with each quick death in a row. After so many
    # of them a vital program is given up. A program that was ready for `settled_s` begins anew.
    first_delay_s: float = 0.5
    max_delay_s: float = 60.0
    quick_deaths: int = 5
    settled_s: float = 10.0
    hung_after_s: float = 60.0  # without a sign of life: it is killed, which is a death too
    probe_every_s: float = 0.1
    alive_every_s: float = 10.0
    free_port_within_s: float = 5.0

    def delay_s(self, deaths: int) -> float:
        """The pause before the next start, after so many quick deaths in a row."""
        if deaths <= 1:
            return 0.0
        return min(self.first_delay_s * 2.0 ** (deaths - 2), self.max_delay_s)
