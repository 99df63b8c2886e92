"""`reef releases`: the release chain of a scenario, or the heads of all."""

from typing import Annotated, Any

import typer

from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import ago, print_asked, print_json, print_table

_COLUMNS = ("release", "", "operation", "kind", "when", "score", "parent")


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
        rows = gateway.get("/reef/scenarios")["data"]
        if as_json:
            print_json(rows)
        else:
            print_table(("scenario", *_COLUMNS), [(row["scenario"], *release_row(row["head"])) for row in rows], empty="no scenario yet")
            print_asked(gateway.url)
        return
    chain = gateway.get(f"/reef/scenarios/{scenario}/releases", limit=limit)["data"]
    if as_json:
        print_json(chain)
    else:
        print_table(_COLUMNS, [release_row(row) for row in chain], empty=f"scenario {scenario!r} has no release yet")
        print_asked(gateway.url)


def release_row(row: dict[str, Any]) -> tuple[str | int, ...]:
    """One release as cells of a table."""
    mark = "serving" if row["current"] else "pending" if row["pending"] else ""
    return row["release_id"], mark, row["operation"], row["kind"], ago(row["created_at"]), _score(row), row["parent_id"] or ""


def _score(row: dict[str, Any]) -> str:
    """Candidate and head scores of its evaluation, where it had one."""
    evaluation = row["evaluation"] or {}
    candidate, head = evaluation.get("candidate_score"), evaluation.get("head_score")
    if candidate is None:
        return ""
    return f"{candidate:.3f}" + (f" (head {head:.3f})" if head is not None else "")
