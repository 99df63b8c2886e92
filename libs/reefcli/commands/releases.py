"""`reef releases`, `reef rollback`, `reef promote`: the release chain of a scenario, its head."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from reefcli.contents import fetch
from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway, find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, Limit, Named, StateDir, Url
from reefcli.output import ago, compared, counted, print_asked, print_json, print_story, print_table

_COLUMNS = ("release", "state", "operation", "kind", "when", "evidence", "parent")
_REJECTED = ("candidate or command", "outcome", "when", "evidence", "reason")


_CHAIN = "Its chain, newest first. Without it: the heads, if there are several scenarios."
_Scenario = Annotated[str | None, typer.Argument(help=_CHAIN)]
# Shown with the release, and in the log for ever.
_Reason = Annotated[str, typer.Option(help="Kept with the release.")]
_Rejected = Annotated[bool, typer.Option("--rejected", help="The candidates that lost, and why.")]
_EVIDENCE = "Of this release or rejected candidate: every task, both answers, the verifier's words."
_Evidence = Annotated[str | None, typer.Option("--evidence", metavar="ID", help=_EVIDENCE)]
_GET = "Fetch the files of this release, of a --kind, into the directory --to."
_Get = Annotated[str | None, typer.Option("--get", metavar="ID", help=_GET)]
_OfKind = Annotated[str, typer.Option(help="For --get: harness, solution, lora, …")]
_To = Annotated[Path | None, typer.Option("--to", metavar="DIR", help="For --get. Default: ID.")]


def releases(
    scenario: _Scenario = None,
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    limit: Limit = 20,
    rejected: _Rejected = False,
    evidence_of: _Evidence = None,
    get: _Get = None,
    kind: _OfKind = "solution",
    to: _To = None,
    as_json: AsJson = False,
) -> None:
    """The releases of a scenario, the evidence for each, and the release that serves.

    The column `evidence` compares the candidate with the head of that time on the held-out tasks:
    tasks won, lost and tied, then both mean scores (higher is better), the strength of the verdict
    and its number of pairs. A `stale` pending release can never be promoted; the column says why.

    Examples:

      reef releases

      reef releases default

      reef releases default --rejected

      reef releases --evidence cand-3f0c

      reef releases default --get r7-114eef --kind solution --to best

      reef releases default --json | jq '.[0].metrics'
    """
    gateway = find(url, state_dir)
    heads = [] if scenario or rejected else gateway.get("/reef/scenarios")["data"]
    if len(heads) == 1 and not as_json:  # a program gets the heads, however many there are
        scenario = heads[0]["scenario"]
    name = scenario or "default"
    if evidence_of is not None:
        _print_evidence(gateway, name, evidence_of, as_json=as_json)
    elif get is not None:
        _get(gateway, name, get, kind, to)
    else:
        _print_chain(gateway, scenario, heads, limit, rejected=rejected, as_json=as_json)


def _print_chain(
    gateway: Gateway,
    scenario: str | None,
    heads: list[dict[str, Any]],
    limit: int,
    *,
    rejected: bool,
    as_json: bool,
) -> None:
    name = scenario or "default"
    path = f"/reef/scenarios/{name}"
    columns: Sequence[str] = _COLUMNS
    if rejected:
        rows = gateway.get(f"{path}/rejections", limit=limit)["data"]
        columns, cells = _REJECTED, [rejected_row(row) for row in rows]
        empty = f"nothing was rejected in scenario {name!r}"
    elif scenario is None:
        rows = heads
        columns = ("scenario", *_COLUMNS)
        cells = [(row["scenario"], *release_row(row["head"])) for row in rows]
        empty = "no scenario yet"
    else:
        rows = gateway.get(f"{path}/releases", limit=limit)["data"]
        cells = [release_row(row) for row in rows]
        empty = f"scenario {name!r} has no release yet"
    if as_json:
        print_json(rows)
        return
    print_table(columns, cells, whole=("release", "parent"), empty=empty)
    if len(rows) == limit and (rejected or scenario):
        # A sequence counts from 0: that of the last row is the number of older releases.
        older = "there may be older ones" if rejected else f"{rows[-1]['sequence']} older ones"
        if rejected or rows[-1]["sequence"]:
            typer.echo(f"({older}: --limit N shows more)", err=True)
    print_asked(gateway.url)


def _get(gateway: Gateway, scenario: str, release_id: str, kind: str, to: Path | None) -> None:
    directory = to or Path(release_id)
    for name in fetch(gateway, scenario, release_id, kind, directory):
        typer.echo(str(directory / name))


def _print_evidence(gateway: Gateway, scenario: str, wanted: str, *, as_json: bool) -> None:
    if (row := next(iter(decided(gateway, scenario, wanted)), None)) is None:
        raise CommandFailed(f"no release and no rejected candidate {wanted} in {scenario!r}")
    if as_json:
        print_json(row["evaluation"])
        return
    print_story(tell_evidence(row))


def decided(gateway: Gateway, scenario: str, wanted: str = "") -> list[dict[str, Any]]:
    """Return the releases and rejected candidates whose id begins like this."""
    path = f"/reef/scenarios/{scenario}"
    parts = (gateway.get(f"{path}/{part}", limit=1000) for part in ("releases", "rejections"))
    rows = [row for part in parts for row in part["data"]]
    names = ("release_id", "candidate_id", "event_id")
    return [row for row in rows if any((row.get(n) or "").startswith(wanted) for n in names)]


def tell_evidence(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of a verdict: the rule, its figures, each task with both answers."""
    found = row["evaluation"]
    yield "of", row.get("release_id") or row.get("candidate_id") or row["event_id"]
    if not found:
        yield "verdict", f"there was no evaluation: {row.get('reason', '')}"
        return
    yield "verdict", f"{found.get('verdict', row.get('outcome', ''))}: {evidence(row)}"
    policy, reason = f"{found.get('policy', '')}: ", str(found.get("reason", row.get("reason", "")))
    yield "rule", policy + reason.removeprefix(policy)
    for task in found.get("tasks") or ():
        yield "task", f"{task['task']}: {' against '.join(_scores(task))}"
        for side in ("candidate", "head"):
            yield f"  {side}", task.get(f"{side}_answer", "")
            if words := task.get(f"{side}_words"):
                yield "    words", words
            if run := task.get(f"{side}_run"):
                yield "    run", told_run(run)


def told_run(run: dict[str, Any]) -> str:
    """Return the end of an agent's run in words. Its steps: `reef harness episodes`."""
    files = f", files: {', '.join(run['files'])}" if run["files"] else ""
    return f"{run['status']}, {run['seconds']:.1f} s, {counted(run['requests'], 'request')}{files}"


def _scores(task: dict[str, Any]) -> list[str]:
    values = [task.get("candidate"), task.get("head")]
    shown = ["no answer" if value is None else f"{value:.3g}" for value in values]
    # Two scores that differ must not look equal.
    numbers = [value for value in values if value is not None]
    return compared(numbers) if shown[0] == shown[1] and len(numbers) == len(values) else shown


def release_row(row: dict[str, Any]) -> tuple[str | int, ...]:
    """Return a release as cells of a table."""
    marks = {"serving": row["current"], "stale": row.get("stale"), "pending": row["pending"]}
    mark = next((name for name, holds in marks.items() if holds), "")
    mark = " ".join(filter(None, (mark, traffic(row))))
    # A rollback has no evidence of its own: it says why it was asked for.
    why = evidence(row) or (row.get("reason") if row["operation"] == "rollback" else "")
    found = "; ".join(filter(None, (row.get("stale_reason"), why)))
    when, parent = ago(row["created_at"]), row["parent_id"] or ""
    return row["release_id"], mark, row["operation"], row["kind"], when, found, parent


def traffic(row: dict[str, Any]) -> str:
    """The sessions that a release gets, if a routing policy shares them."""
    gets = row.get("traffic") or {}
    share = gets.get("share", 0.0)
    rules = [f"{rule['tag']}={rule['value']}" for rule in gets.get("rules", ())]
    if share == 1 and not rules:
        return ""
    return " ".join([f"{100 * share:.3g} %" if share or gets else "", *rules]).strip()


def rejected_row(row: dict[str, Any]) -> tuple[str | int, ...]:
    """Return a rejection as cells of a table."""
    name = row["candidate_id"] or row["command_id"] or row["event_id"]
    return name, row["outcome"], ago(row["at"]), evidence(row), row["reason"]


def evidence(row: dict[str, Any]) -> str:
    """Tasks won, lost and tied, and both mean scores, as far as there was an evaluation."""
    found = row["evaluation"] or {}
    scores = [found[key] for key in ("candidate_score", "head_score") if found.get(key) is not None]
    # A creation or a rollback has no evaluation.
    if not scores:
        return ""
    words = {"wins": "won", "losses": "lost", "ties": "tied"}
    tasks = ", ".join(f"{found[key]} {word}" for key, word in words.items() if found.get(key))
    worth = found.get("strength") or ""
    if worth and found.get("pairs"):
        worth = f"{worth.replace('none', 'no')} evidence, {counted(found['pairs'], 'pair')}"
    return "; ".join(filter(None, (tasks, " against ".join(compared(scores)), worth)))


def rollback(
    scenario: Named,
    release_id: Annotated[str, typer.Argument(help="The release to go back to (`reef releases`).")],
    reason: _Reason = "",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Serve an earlier release again, as a new release with the old content.

    No release is deleted. Later candidates start from this release, and the next winner replaces
    it. After `reef hold`, or with `review: manual` at the recipe in serve.yaml, winners wait for a
    person (`reef promote`).

    Example:

      reef rollback default r1-114eef
    """
    _move(find(url, state_dir), "rollback", scenario, release_id, reason, as_json=as_json)


def promote(
    scenario: Named,
    release_id: Annotated[str, typer.Argument(help="A pending release (`reef releases`).")],
    reason: _Reason = "",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Let a release that waits for a person serve (`review: manual`, `reef hold`).

    Example:

      reef promote default r1-114eef
    """
    _move(find(url, state_dir), "promote", scenario, release_id, reason, as_json=as_json)


def _move(
    gateway: Gateway, operation: str, scenario: str, release_id: str, reason: str, *, as_json: bool
) -> None:
    body = {"release_id": release_id, "reason": reason}
    release = gateway.post(f"/reef/scenarios/{scenario}/{operation}", body)
    if as_json:
        print_json(release)
        return
    text = f"{scenario} now serves {release['release_id']} ({operation} of {release_id})"
    print_asked(gateway.url, text)
