"""`reef releases`: the release chain of a scenario, or the heads of all."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer

from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway, find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import Cell, ago, compared, print_asked, print_json, print_story, print_table

_COLUMNS = ("release", "", "operation", "kind", "when", "evidence", "parent")
_REJECTED = ("candidate or command", "outcome", "when", "evidence", "reason")


def releases(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="Its chain, newest first. Without it: every scenario and what it serves."
        ),
    ] = None,
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)] = 20,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="What came to nothing instead, and why.")
    ] = False,
    evidence_of: Annotated[
        str | None,
        typer.Option(
            "--evidence",
            metavar="ID",
            help="Of this release or rejected candidate: every task with both answers.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The releases of a scenario, the evidence for each, and the release that serves.

    The column `evidence` compares the candidate with the head of that time on the held-out tasks:
    tasks won, lost and tied, then both mean scores, on the scale of `evaluation.score` in
    serve.yaml; higher is better. Then the strength of the verdict and its number of pairs. A
    pending release that is `stale` can never be promoted; the column says why.

    Examples:

      reef releases

      reef releases default

      reef releases default --rejected

      reef releases --evidence cand-3f0c

      reef releases default --json | jq '.[0].metrics'
    """
    gateway = find(url, state_dir)
    if evidence_of is not None:
        _print_evidence(gateway, scenario or "default", evidence_of, as_json=as_json)
        return
    columns: Sequence[str]
    cells: Iterable[Sequence[Cell]]
    if rejected:
        name = scenario or "default"
        rows = gateway.get(f"/reef/scenarios/{name}/rejections", limit=limit)["data"]
        columns, cells, empty = (
            _REJECTED,
            (rejected_row(row) for row in rows),
            f"nothing was rejected in scenario {name!r}",
        )
    elif scenario is None:
        rows = gateway.get("/reef/scenarios")["data"]
        columns, cells, empty = (
            ("scenario", *_COLUMNS),
            ((row["scenario"], *release_row(row["head"])) for row in rows),
            "no scenario yet",
        )
    else:
        rows = gateway.get(f"/reef/scenarios/{scenario}/releases", limit=limit)["data"]
        columns, cells, empty = (
            _COLUMNS,
            (release_row(row) for row in rows),
            f"scenario {scenario!r} has no release yet",
        )
    if as_json:
        print_json(rows)
        return
    print_table(columns, cells, whole=("release", "parent"), empty=empty)
    if scenario is not None and len(rows) == limit:
        older = "there may be older ones" if rejected else f"{rows[-1]['sequence']} older ones"
        typer.echo(f"({older}: --limit N shows more)", err=True)
    print_asked(gateway.url)


def _print_evidence(gateway: Gateway, scenario: str, wanted: str, *, as_json: bool) -> None:
    """Print the tasks of a verdict. Raises CommandFailed if the id is unknown."""
    path = f"/reef/scenarios/{scenario}"
    rows = [
        row
        for part in ("releases", "rejections")
        for row in gateway.get(f"{path}/{part}", limit=1000)["data"]
    ]
    names = ("release_id", "candidate_id", "event_id")
    named = [row for row in rows if any((row.get(n) or "").startswith(wanted) for n in names)]
    if not named:
        raise CommandFailed(f"no release and no rejected candidate {wanted} in {scenario!r}")
    row = named[0]
    if as_json:
        print_json(row["evaluation"])
        return
    print_story(tell_evidence(row))


def tell_evidence(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of a verdict: the rule, its figures, each task with both answers."""
    found = row["evaluation"]
    yield "of", row.get("release_id") or row.get("candidate_id") or row["event_id"]
    if not found:
        yield "verdict", f"there was no evaluation: {row.get('reason', '')}"
        return
    yield "verdict", f"{found.get('verdict', row.get('outcome', ''))}: {evidence(row)}"
    yield "rule", f"{found.get('policy', '')}: {found.get('reason', row.get('reason', ''))}"
    for task in found.get("tasks") or ():
        scores = " against ".join(_score(task.get(key)) for key in ("candidate", "head"))
        yield "task", f"{task['task']}: {scores}"
        yield "  candidate", task.get("candidate_answer", "")
        yield "  head", task.get("head_answer", "")


def _score(value: float | None) -> str:
    return "no answer" if value is None else f"{value:.3g}"


def release_row(row: dict[str, Any]) -> tuple[str | int, ...]:
    """Return a release as cells of a table."""
    mark = (
        "serving"
        if row["current"]
        else "stale"
        if row.get("stale")
        else "pending"
        if row["pending"]
        else ""
    )
    found = "; ".join(filter(None, (row.get("stale_reason"), evidence(row))))
    return (
        row["release_id"],
        mark,
        row["operation"],
        row["kind"],
        ago(row["created_at"]),
        found,
        row["parent_id"] or "",
    )


def rejected_row(row: dict[str, Any]) -> tuple[str | int, ...]:
    """Return a rejection as cells of a table."""
    what = row["candidate_id"] or row["command_id"] or row["event_id"]
    return what, row["outcome"], ago(row["at"]), evidence(row), row["reason"]


def evidence(row: dict[str, Any]) -> str:
    """Tasks won, lost and tied, and both mean scores, as far as there was an evaluation."""
    found = row["evaluation"] or {}
    scores = [found[key] for key in ("candidate_score", "head_score") if found.get(key) is not None]
    if not scores:
        return ""
    tasks = ", ".join(
        f"{found[key]} {word}"
        for key, word in (("wins", "won"), ("losses", "lost"), ("ties", "tied"))
        if found.get(key)
    )
    worth = found.get("strength") or ""
    if worth and found.get("pairs"):
        worth = f"{worth} evidence, {found['pairs']} pairs"
    return "; ".join(filter(None, (tasks, " against ".join(compared(scores)), worth)))
