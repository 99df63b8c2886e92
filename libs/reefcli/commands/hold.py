"""`reef hold`, `reef resume`: whether the winners of a scenario wait for a person."""

from typing import Annotated, Any

import typer

from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, Named, StateDir, Url
from reefcli.output import counted, print_asked, print_json

_Reason = Annotated[str, typer.Option(help="Shown by `reef status`.")]


def hold(
    scenario: Named,
    reason: _Reason = "",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Keep the release that serves: winners wait for a person until `reef resume`.

    Recipes go on learning, and their candidates are judged; a winner is pending, as with
    `review: manual` in serve.yaml. `reef promote` releases it, also during the hold.

    Example:

      reef hold default --reason "until Monday"
    """
    _ask(f"/reef/scenarios/{scenario}/hold", {"reason": reason}, url, state_dir, as_json=as_json)


def resume(
    scenario: Named,
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """End a hold: the next winner is released. A winner that waits still waits for `reef promote`.

    Example:

      reef resume default
    """
    _ask(f"/reef/scenarios/{scenario}/resume", {}, url, state_dir, as_json=as_json)


def _ask(path: str, body: dict[str, Any], url: Url, state_dir: StateDir, *, as_json: bool) -> None:
    gateway = find(url, state_dir)
    found = gateway.post(path, body)
    if as_json:
        print_json(found)
        return
    held = found["held"] is not None
    text = "is held: winners wait for a person" if held else "is not held: the next winner serves"
    if pending := found["pending"]:
        text += f"; {counted(len(pending), 'release')} wait, the newest is {pending[0]}"
    print_asked(gateway.url, f"{found['scenario']} {text}")
