"""What happens to a program of the stack, and how often it may."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StackEvent:
    """Something that a person may want to see. `fraction` (0..1) belongs to `progress`; a `note` is said once, as it is."""

    name: str
    kind: Literal[
        "starting",
        "waiting",
        "progress",
        "ready",
        "died",
        "restarting",
        "stopping",
        "stopped",
        "note",
    ]
    text: str = ""
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """A program that ends is started again: the first time at once, then after a growing pause; too many quick deaths in a row are final
    for one that the others cannot do without.

    A death is quick where the program had not been ready for `settled_s` seconds. One that gives no sign of life for `hung_after_s`
    seconds is killed, and that is a death like any other.
    """

    first_delay_s: float = 0.5
    max_delay_s: float = 60.0
    deaths: int = 5
    settled_s: float = 10.0
    hung_after_s: float = 60.0
    probe_every_s: float = 0.1
    alive_every_s: float = 10.0
    free_port_within_s: float = 5.0

    def delay_s(self, deaths: int) -> float:
        """The pause before the next start, after so many quick deaths in a row."""
        return (
            min(self.first_delay_s * 2.0 ** (deaths - 2), self.max_delay_s) if deaths > 1 else 0.0
        )
