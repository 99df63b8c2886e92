"""`reef records`: what was asked and answered, and what was said about it."""

import re
from typing import Annotated, Any

import typer

from reefcli import story
from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway, find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import ago, print_asked, print_json, print_story, print_table

_RECEIPT = re.compile(r"rec-[0-9a-f]{32}-[0-9a-f]{4}")
_PAGES = 20  # of a thousand steps each: what is older is not looked for


def records(
    scenario: Annotated[
        str,
        typer.Argument(help="A scenario; or the word `show`, followed by a receipt; or a receipt."),
    ] = "default",
    record_id: Annotated[str | None, typer.Argument(help="With `show`: the receipt.")] = None,
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)] = 20,
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """What was asked and answered, newest first; or one record and what became of it: reports, samples, training step, release.

    Examples:

      reef records

      reef records support --session ses-42

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
        raise CommandFailed(
            f"reef records {scenario} takes no second word; did you mean: reef records show {record_id}"
        )
    rows = gateway.get(f"/reef/scenarios/{scenario}/records", session=session, limit=limit)["data"]
    if not rows:
        gateway.get(
            f"/reef/scenarios/{scenario}/releases", limit=1
        )  # says so where there is no such scenario
    if as_json:
        print_json(rows)
    else:
        columns = ("record", "when", "outcome", "session", "turn", "release", "ms")
        print_table(
            columns,
            [_row(row) for row in rows],
            whole=("release",),
            empty=f"no records in scenario {scenario!r} yet",
        )
        print_asked(gateway.url)


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    keys = ("outcome", "session_id", "session_turn", "release_id", "duration_ms")
    return row["record_id"], ago(row["at"]), *(row.get(key) for key in keys)


def _show(gateway: Gateway, record_id: str, *, as_json: bool) -> None:
    """One record with all that came of it."""
    found = gateway.get(f"/reef/records/{record_id}")
    found.update(_what_became(gateway, found))
    if as_json:
        print_json(found)
        return
    print_story(story.tell(found))
    print_asked(gateway.url)


def _what_became(gateway: Gateway, found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The steps that trained on its samples, and the releases that name them."""
    sample_ids = {sample["sample_id"] for sample in found.get("samples", ())}
    if not sample_ids:
        return {"steps": [], "releases": []}
    scenario = f"/reef/scenarios/{found['record']['scenario']}"
    steps: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = gateway.get(f"{scenario}/steps", limit=1000, cursor=cursor)
        steps += story.of_samples(page["data"], sample_ids)
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    chain = gateway.get(f"{scenario}/releases", limit=1000)["data"]
    return {"steps": steps, "releases": story.of_samples(chain, sample_ids)}
