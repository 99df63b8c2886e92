"""`reef canary`: a share of the sessions for a release, beside the head."""

from typing import Annotated, Any

import typer

from reefcli.errors import CommandFailed
from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, Named, StateDir, Url
from reefcli.output import print_asked, print_json

_Release = Annotated[str | None, typer.Argument(help="Pending or earlier (`reef releases`).")]
_Share = Annotated[float, typer.Option(min=0, max=1, help="Of the sessions that no rule fits.")]
_TAG = "Requests whose tag has this value go to the release; `*` fits any part. May be repeated."
_Tag = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME=VALUE", help=_TAG)]
_End = Annotated[bool, typer.Option("--end", help="All sessions go to the head again.")]
_Reason = Annotated[str, typer.Option(help="Kept with the release.")]


def canary(
    scenario: Named,
    release_id: _Release = None,
    share: _Share = 0.0,
    tag: _Tag = None,
    end: _End = False,
    reason: _Reason = "",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Try a release on a share of the sessions, or on those with a tag.

    A session stays with its release, on every gateway and after a restart. It takes the place of
    the policy before. `reef promote` makes a pending release the head, and ends the trial.

    Examples:

      reef canary default r5-0a1b2c --share 0.1

      reef canary default r5-0a1b2c --tag client=beta

      reef canary default --end
    """
    if end != (release_id is None) or (not end and not share and not tag):
        raise CommandFailed("name a release with --share or --tag, or give --end alone")
    body: dict[str, Any] = {"shares": {}, "rules": [], "reason": reason}
    if release_id is not None:
        body["shares"] = {release_id: share} if share else {}
        body["rules"] = [{**_pair(text), "release": release_id} for text in tag or ()]
    gateway = find(url, state_dir)
    release = gateway.post(f"/reef/scenarios/{scenario}/routing", body)
    if as_json:
        print_json(release)
        return
    gets = f"{release_id} gets {100 * share:g} % of the sessions" if share else f"{release_id}"
    rules = f"those with {', '.join(tag)}" if tag else ""
    joined = " and ".join(filter(None, (gets, rules))) if share else f"{gets} gets {rules}"
    text = "all sessions go to the head" if end else joined
    print_asked(gateway.url, f"{scenario}: {text}")


def _pair(text: str) -> dict[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise CommandFailed(f"--tag is NAME=VALUE, not {text!r}")
    return {"tag": name, "value": value}
