"""`reef records`: exchanges with the model, and the story of a single record."""

import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from reefcli import story
from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway, find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, Limit, StateDir, Url
from reefcli.output import ago, print_asked, print_json, print_story, print_table

_RECEIPT = re.compile(r"rec-[0-9a-f]{32}-[0-9a-f]{4}")
_PAGES = 20  # of a thousand rows each: older rows are not searched
_COLUMNS = ("record", "when", "outcome", "session", "turn", "release", "ms")
_SCORED = ("record", "when", "score", "session", "release", "trained on", "sample")


_SCENARIO = "A scenario, or a receipt, or `show` and a receipt."
_Scenario = Annotated[str, typer.Argument(help=_SCENARIO)]
_RecordId = Annotated[str | None, typer.Argument(help="With `show`: the receipt.")]
_Session = Annotated[str | None, typer.Option(help="Only this session.")]
_score = partial(typer.Option, show_default=False)
_MinScore = Annotated[float, _score(help="Only records with at least this score.")]
_MaxScore = Annotated[float, _score(help="Only records with at most this score.")]
_EXPORT = "Write the records whole, a JSON object a line. -: stdout."
_Export = Annotated[Path | None, typer.Option(help=_EXPORT)]


def records(
    scenario: _Scenario = "default",
    record_id: _RecordId = None,
    session: _Session = None,
    min_score: _MinScore = -inf,
    max_score: _MaxScore = inf,
    export: _Export = None,
    limit: Limit = 20,
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Exchanges with the model, newest first; or the story of a record up to its release.

    Examples:

      reef records

      reef records support --session ses-42

      reef records --max-score 0.5 --limit 1000 --export bad.jsonl

      reef records show rec-0192f0c1a5d27cc1b1d2a4f1f0c3e5a7-9f3c
    """
    gateway = find(url, state_dir)
    if record_id is None and _RECEIPT.fullmatch(scenario):
        scenario, record_id = "show", scenario
    if scenario == "show":
        if record_id is None:
            raise CommandFailed("which record? reef records show RECEIPT")
        _show(gateway, record_id, as_json=as_json)
        return
    if record_id is not None:
        meant = f"did you mean: reef records show {record_id}"
        raise CommandFailed(f"reef records {scenario} takes no second word; {meant}")
    scored = (min_score, max_score) != (-inf, inf)
    if scored:
        rows = _scored(gateway, scenario, session, (min_score, max_score), limit)
    else:
        path = f"/reef/scenarios/{scenario}/records"
        rows = gateway.get(path, session=session, limit=limit)["data"]
    # An empty list and a mistyped scenario look alike: ask whether the scenario exists.
    if not rows:
        gateway.get(f"/reef/scenarios/{scenario}/releases", limit=1)  # 404 if it does not exist
    if export is not None:
        _export(gateway, rows, export)
    elif as_json:
        print_json(rows)
    else:
        columns, cells = (_SCORED, _scored_row) if scored else (_COLUMNS, _row)
        empty = f"no such records in scenario {scenario!r}"
        print_table(columns, map(cells, rows), whole=("release",), empty=empty)
        print_asked(gateway.url)


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    keys = ("outcome", "session_id", "session_turn", "release_id", "duration_ms")
    return row["record_id"], ago(row["at"]), *(row.get(key) for key in keys)


def _scored_row(row: dict[str, Any]) -> tuple[Any, ...]:
    fit = row.get("untrainable") or f"{row['trained_tokens']} tokens"
    cells = (row.get(key) for key in ("score", "session_id", "release_id"))
    return row["record_id"], ago(row["at"]), *cells, fit, row["sample_id"]


def _scored(
    gateway: Gateway, scenario: str, session: str | None, bounds: tuple[float, float], limit: int
) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for sample in _pages(gateway, f"/reef/scenarios/{scenario}/samples"):
        score = sample.get("score")
        if score is None or not bounds[0] <= score <= bounds[1]:
            continue
        if session is None or sample.get("session_id") == session:
            # A sample of several turns lists each of its records.
            for record_id in sample["record_ids"]:
                rows.setdefault(record_id, {"record_id": record_id, **sample})
        if len(rows) >= limit:
            break
    return list(rows.values())[:limit]


def _pages(gateway: Gateway, path: str) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    for _ in range(_PAGES):
        page = gateway.get(path, limit=1000, cursor=cursor)
        yield from page["data"]
        cursor = page.get("next_cursor")
        if cursor is None:
            return


def _export(gateway: Gateway, rows: list[dict[str, Any]], place: Path) -> None:
    whole = (gateway.get(f"/reef/records/{row['record_id']}") for row in rows)
    stdout = str(place) == "-"
    with nullcontext(sys.stdout.buffer) if stdout else place.open("wb") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in whole)
    if not stdout:
        typer.echo(f"{len(rows)} records written to {place}")


def _show(gateway: Gateway, record_id: str, *, as_json: bool) -> None:
    found = gateway.get(f"/reef/records/{record_id}")
    found.update(_uses(gateway, found))
    if as_json:
        print_json(found)
        return
    print_story(story.tell(found))
    print_asked(gateway.url)


def _uses(gateway: Gateway, found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    sample_ids = {sample["sample_id"] for sample in found.get("samples", ())}
    if not sample_ids:
        return {"steps": [], "releases": [], "rejections": []}
    scenario = f"/reef/scenarios/{found['record']['scenario']}"
    steps = story.of_samples([*_pages(gateway, f"{scenario}/steps")], sample_ids)
    chain = gateway.get(f"{scenario}/releases", limit=1000)["data"]
    rejected = gateway.get(f"{scenario}/rejections", limit=1000)["data"] if steps else []
    own = {step["candidate_id"] for step in steps} - {None}
    return {
        "steps": steps,
        "releases": story.of_samples(chain, sample_ids),
        "rejections": [row for row in rejected if row["candidate_id"] in own],
    }
