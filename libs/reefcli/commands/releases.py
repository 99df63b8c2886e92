"""`reef releases`: the release chain of a scenario, or the heads of all."""

from typing import Annotated, Any

import typer

from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import ago, print_json, print_table


def releases(
    scenario: Annotated[str | None, typer.Argument(help="Its chain, newest first. Without it: every scenario and what it serves.")] = None,
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)] = 20,
    as_json: AsJson = False,
) -> None:
    """Which versions there were, which one serves, and why.

    Examples:

      reef releases

      reef releases default

      reef releases default --json | jq '.[0].metrics'
    """
    gateway = find(url, state_dir)
    if scenario is None:
        rows = gateway.get("/reef/scenarios")["scenarios"]
        if as_json:
            print_json(rows)
        else:
            print_table(("scenario", "serves", "recipes"), [_scenario_row(row) for row in rows])
        return
    chain = gateway.get(f"/reef/scenarios/{scenario}/releases", limit=limit)["releases"][:limit]
    if as_json:
        print_json(chain)
    else:
        columns = ("release", "", "operation", "kind", "when", "score", "parent")
        print_table(columns, [release_row(row) for row in chain], empty=f"scenario {scenario!r} has no release yet")


def _scenario_row(row: Any) -> tuple[str, str, str]:
    if not isinstance(row, dict):
        return str(row), "", ""
    recipes = row.get("recipes") or ()
    return str(row.get("scenario", "")), str(row.get("head") or row.get("release_id") or ""), ", ".join(map(str, recipes))


def release_row(row: dict[str, Any]) -> tuple[str, str, str, str, str, str, str]:
    """One release as cells of a table."""
    mark = "serving" if row.get("current") else "pending" if row.get("pending") else ""
    return (
        str(row.get("release_id", "")),
        mark,
        str(row.get("operation", "")),
        str(row.get("kind") or ""),
        ago(row["at"]) if row.get("at") else "",
        _score(row),
        str(row.get("parent") or row.get("parent_id") or ""),
    )


def _score(row: dict[str, Any]) -> str:
    """Candidate and head scores of its evaluation, where it had one."""
    evaluation = row.get("evaluation")
    if not isinstance(evaluation, dict):
        return ""
    candidate, head = evaluation.get("candidate_score"), evaluation.get("head_score")
    if candidate is None:
        return ""
    return f"{candidate:.3f}" + (f" (head {head:.3f})" if head is not None else "")
