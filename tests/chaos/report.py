"""What a run came to: a table for people, JSON for machines, and the command that repeats it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from reefcommon.events import ReleasePublished, StepCompleted
from tests.chaos.checker import all_held
from tests.chaos.facts import Facts, Happened
from tests.chaos.plan import PARTS
from tests.chaos.reading import Stated, acknowledged, of_type, steps

SHOWN = 5


def summary(
    facts: Facts,
    stated: Sequence[Stated],
    *,
    seed: int,
    command: str,
    started_in_s: float,
    took_s: float,
) -> dict[str, Any]:
    """Everything, JSON-ready."""
    return {
        "seed": seed,
        "held": all_held(stated),
        "command": command,
        "started_in_s": round(started_in_s, 1),
        "took_s": round(took_s, 1),
        "kills": sum(kills(facts.happened).values()),
        "outages": sum(len(h.parts) for h in facts.happened if h.kind in ("outage", "disk")),
        "parts": parts(facts.happened),
        "counts": counts(facts),
        "failures": failures(facts),
        "invariants": [
            {
                "name": s.name,
                "says": s.says,
                "held": s.held,
                "looked_at": s.looked_at,
                "broken": s.broken[:50],
                "broken_count": len(s.broken),
            }
            for s in stated
        ],
        "faults": [
            {
                "number": h.number,
                "kind": h.kind,
                "parts": h.parts,
                "mode": h.mode,
                "began_at": h.began_at,
                "recovery_s": round(h.recovered_at - h.over_at, 2)
                if h.recovered_at is not None
                else None,
                "ready_s": {part: round(s, 2) for part, s in h.ready_s.items()},
                "why_not": h.why_not,
            }
            for h in facts.happened
        ],
    }


def kills(happened: Sequence[Happened]) -> Counter[str]:
    """SIGKILLs by part: those of the schedule, those that began an outage, and those that the
    supervisor sent to what hung.
    """
    return Counter(
        part for h in happened if h.kind in ("kill", "outage", "hang", "disk") for part in h.parts
    )


def parts(happened: Sequence[Happened]) -> dict[str, dict[str, Any]]:
    """By part: kills, outages, pauses, and the seconds until it was ready again after a kill."""
    ready: dict[str, list[float]] = defaultdict(list)
    for h in happened:
        if h.kind == "kill":
            for part, seconds in h.ready_s.items():
                ready[part].append(seconds)
    killed = kills(happened)
    rows = {}
    for part in (*PARTS, "upstream"):
        seconds = sorted(ready[part])
        rows[part] = {
            "kills": killed[part],
            "outages": sum(part in h.parts for h in happened if h.kind in ("outage", "disk")),
            "pauses": sum(
                part in h.parts for h in happened if h.kind in ("pause", "hang", "upstream")
            ),
            "ready_median_s": round(median(seconds), 1) if seconds else None,
            "ready_max_s": round(seconds[-1], 1) if seconds else None,
        }
    return rows


def counts(facts: Facts) -> dict[str, int]:
    """How much there was of everything."""
    whole = acknowledged(facts)
    return {
        "requests": len(facts.answers),
        "requests_failed": sum(not a.complete and not a.left for a in facts.answers),
        "requests_left": sum(a.left for a in facts.answers),
        "receipts_acknowledged": len(whole),
        "reports_acknowledged": len({r.report_id for r in facts.reports if r.status == 202}),
        "reports_failed": sum(r.status != 202 for r in facts.reports),
        "events_in_log": len(facts.log),
        "records_in_store": len(facts.records),
        "samples_in_store": len(facts.samples),
        "samples_of_several_turns": sum(len(s.record_ids) > 1 for s in facts.samples),
        "reports_of_several_samples": sum(
            n > 1 for n in Counter(s.report_id for s in facts.samples).values()
        ),
        "steps": len(steps(facts)),
        "steps_told": sum(1 for _ in of_type(facts, StepCompleted)),
        "releases": len({e.release.release_id for _, e in of_type(facts, ReleasePublished)}),
    }


def failures(facts: Facts) -> dict[str, int]:
    """What clients were told where they got no answer, by how often."""
    calls = [("chat", a.status, a.error) for a in facts.answers if not a.complete and not a.left]
    calls += [("report", r.status, r.error) for r in facts.reports if r.status != 202]
    found = Counter(
        f"{what} {status or 'no answer'} {_code(error)}" for what, status, error in calls
    )
    return dict(found.most_common())


def _code(error: str) -> str:
    try:
        return str(orjson.loads(error)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return error.partition("(")[0]


def show(console: Console, found: dict[str, Any]) -> None:
    """Two tables."""
    by_part = Table(
        "part",
        "kills",
        "outages",
        "pauses",
        "ready again, median s",
        "worst s",
        title=f"seed {found['seed']}: what was broken",
    )
    for part, row in found["parts"].items():
        by_part.add_row(part, *(str(value) if value is not None else "-" for value in row.values()))
    console.print(by_part)
    table = Table(
        "invariant",
        "over",
        "",
        title=" · ".join(f"{n} {name.replace('_', ' ')}" for name, n in found["counts"].items()),
    )
    for row in found["invariants"]:
        table.add_row(
            row["says"],
            str(row["looked_at"]),
            "HELD" if row["held"] else f"BROKEN ({row['broken_count']})",
        )
    console.print(table)
    console.print(
        "Requests that failed: "
        + (", ".join(f"{n} times {what}" for what, n in found["failures"].items()) or "none"),
        markup=False,
    )
    for row in found["invariants"]:
        for line in row["broken"][:SHOWN]:
            console.print(f"BROKEN {row['name']}: {line}", markup=False, soft_wrap=True)
    words = f"{found['kills']} kills, {found['outages']} outages, {found['took_s']:.0f} s"
    console.print(
        f"{words}: {'everything held' if found['held'] else 'BROKEN'}",
        style="green" if found["held"] else "red",
    )
    if not found["held"]:
        console.print(f"Again: {found['command']}", markup=False, soft_wrap=True)


def write(path: Path, found: dict[str, Any]) -> None:
    """As JSON."""
    path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
