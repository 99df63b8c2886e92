"""What is broken, in which order: drawn from the seed alone, so that a run can be repeated."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SUPERVISED = (
    "gateway",
    "experience",
    "trainer",
    "harness",
    "evaluator",
    "publisher",
    "engine",
    "tansu",
    "objectstore",
    "valkey",
)
KILLED = (*SUPERVISED, "step")  # the step process is the trainer's to start again
PARTS = (*KILLED, "serve")  # the supervisor is started again by whoever runs it, here the campaign
OUTAGES = ("tansu", "experience", "objectstore", "valkey", "engine")
MODES = ("slow", "cut", "error", "garbage", "refuse")
MAX_BURST = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One event of the schedule.

    kill      SIGKILL to `parts`, `gap_s` apart; "serve" is started again at once, while what it had
              started still ends
    pause     SIGSTOP to `parts`, SIGCONT after `seconds`
    hang      SIGSTOP to `parts`; the supervisor has to find out
    outage    SIGKILL, and kept from starting again for `seconds`
    upstream  the way to the engine is `mode` for `seconds`
    disk      the broker is away for `seconds` and the spool's disk is full meanwhile

    """

    number: int
    kind: str
    parts: tuple[str, ...]
    seconds: float = 0.0
    gap_s: float = 0.0
    mode: str = ""
    wait_s: float = 0.0

    @property
    def kills(self) -> int:
        """How many processes it ends."""
        return len(self.parts) if self.kind in ("kill", "hang") else 0


def draw(seed: int, faults: int) -> tuple[Fault, ...]:
    """`faults` kills and outages, nine to one, and beside them pauses, hangs, a broken upstream and
    a full disk.

    Every part is killed equally often, as far as the number allows; up to three at once. The
    supervisor, whose end is everybody's, is killed beside them, alone.
    """
    rng = random.Random(seed)
    outages = max(faults // 10, 1)
    events = [
        Fault(0, "kill", burst, gap_s=rng.choice((0.0, 0.3, 1.0)))
        for burst in _bursts(rng, max(faults - outages, 0))
    ]
    away = _cycle(rng, OUTAGES)
    events += [
        Fault(0, "outage", (next(away),), seconds=rng.uniform(2.0, 6.0)) for _ in range(outages)
    ]
    paused, modes = _cycle(rng, SUPERVISED), _cycle(rng, MODES)
    events += [
        Fault(0, "pause", (next(paused),), seconds=rng.uniform(1.0, 4.0))
        for _ in range(faults // 10)
    ]
    events += [
        Fault(0, "upstream", ("upstream",), seconds=rng.uniform(1.0, 3.0), mode=next(modes))
        for _ in range(faults // 10)
    ]
    events += [Fault(0, "hang", (next(paused),)) for _ in range(faults // 25)]
    events += [
        Fault(0, "disk", ("tansu",), seconds=rng.uniform(3.0, 5.0)) for _ in range(faults // 25)
    ]
    events += [Fault(0, "kill", ("serve",)) for _ in range(faults // 20)]
    rng.shuffle(events)
    return tuple(numbered(events, rng))


def numbered(events: Sequence[Fault], rng: random.Random) -> Iterator[Fault]:
    """In their order, each a little while after the recovery from the one before."""
    for number, event in enumerate(events, 1):
        yield Fault(
            number,
            event.kind,
            event.parts,
            event.seconds,
            event.gap_s,
            event.mode,
            wait_s=rng.uniform(0.0, 1.0),
        )


def _bursts(rng: random.Random, kills: int) -> Iterator[tuple[str, ...]]:
    parts, waiting = _cycle(rng, KILLED), ""
    while kills > 0:
        burst: list[str] = []
        size = min(kills, rng.choice((1, 1, 2, MAX_BURST)))
        while len(burst) < size and (part := waiting or next(parts)) not in burst:
            burst.append(part)
            waiting = ""
        waiting = part if len(burst) < size else ""
        kills -= len(burst)
        yield tuple(burst)


def _cycle(rng: random.Random, things: Sequence[str]) -> Iterator[str]:
    """All of them in a random order, again and again."""
    while True:
        yield from rng.sample(things, len(things))
