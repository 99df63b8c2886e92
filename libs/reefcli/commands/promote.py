"""`reef promote`: let a pending release serve."""

from typing import Annotated

import typer

from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import console, print_asked, print_json


def promote(
    scenario: Annotated[str, typer.Argument(help="For example: default")],
    release_id: Annotated[str, typer.Argument(help="A pending release (see `reef releases SCENARIO`).")],
    reason: Annotated[str, typer.Option(help="Kept with the release.")] = "",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Let a release that waits for a person serve (recipes with `review: manual`).

    Example:

      reef promote default r1-114eef
    """
    gateway = find(url, state_dir)
    release = gateway.post(f"/reef/scenarios/{scenario}/promote", {"release_id": release_id, "reason": reason})
    if as_json:
        print_json(release)
    else:
        console().print(f"{scenario} now serves {release['release_id']} (promote of {release_id})", markup=False, soft_wrap=True)
        print_asked(gateway.url)
