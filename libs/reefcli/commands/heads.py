"""`reef rollback` and `reef promote`: move the head of a scenario's release chain."""

from typing import Annotated

import typer

from reefcli.gateway import Gateway, find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import console, print_asked, print_json

Scenario = Annotated[str, typer.Argument(help="For example: default")]
# Shown with the release, and in the log for ever.
Reason = Annotated[str, typer.Option(help="Kept with the release.")]


def rollback(
    scenario: Scenario,
    release_id: Annotated[str, typer.Argument(help="The release to go back to (`reef releases`).")],
    reason: Reason = "",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Serve an earlier release again. It becomes a new release with the old content.

    No release is deleted. Learning goes on from there: later candidates start from this release,
    and the next winner replaces it. With `review: manual` at the recipe in serve.yaml, winners wait
    for a person (`reef promote`).

    Example:

      reef rollback default r1-114eef
    """
    _move(find(url, state_dir), "rollback", scenario, release_id, reason, as_json=as_json)


def promote(
    scenario: Scenario,
    release_id: Annotated[str, typer.Argument(help="A pending release (`reef releases`).")],
    reason: Reason = "",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Let a release that waits for a person serve (recipes with `review: manual`).

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
    console().print(text, markup=False, soft_wrap=True)
    print_asked(gateway.url)
