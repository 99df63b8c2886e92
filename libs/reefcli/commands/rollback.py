"""`reef rollback`: serve an earlier release again."""

from typing import Annotated

import typer

from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import console, print_asked, print_json


def rollback(
    scenario: Annotated[str, typer.Argument(help="For example: default")],
    release_id: Annotated[str, typer.Argument(help="The release to go back to (see `reef releases SCENARIO`).")],
    reason: Annotated[str, typer.Option(help="Kept with the release.")] = "",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Serve an earlier release again. It becomes a new release with the old content; nothing is deleted.

    Example:

      reef rollback default r1-114eef
    """
    gateway = find(url, state_dir)
    release = gateway.post(f"/reef/scenarios/{scenario}/rollback", {"release_id": release_id, "reason": reason})
    if as_json:
        print_json(release)
    else:
        console().print(f"{scenario} now serves {release['release_id']} (rollback of {release_id})", markup=False, soft_wrap=True)
        print_asked(gateway.url)
