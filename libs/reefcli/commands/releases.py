"""`reef releases`: the release chain of a scenario, or the heads of all."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import Cell, ago, compared, print_asked, print_json, print_table

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
    as_json: AsJson = False,
) -> None:
    """Which versions there were, which one serves, and why.

    The column `evidence` tells how the candidate did against the head of that time on the held-out tasks: tasks won, lost and tied, then
    both mean scores. They are on the scale of `evaluation.score` in serve.yaml, higher is better; wins and losses decide, unless
    `evaluation.policy` says otherwise. A pending release that is `stale` can never be promoted: there it begins with why. --json has the
    policy, the reason and each task.

    Examples:

      reef releases

      reef releases default

      reef releases default --rejected

      reef releases default --json | jq '.[0].metrics'
    """
    gateway = find(url, state_dir)
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
    print_asked(gateway.url)


def release_row(row: dict[str, Any]) -> tuple[str | int, ...]:
    """One release as cells of a table."""
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
    """One rejection as cells of a table."""
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
    return "; ".join(filter(None, (tasks, " against ".join(compared(scores)))))
