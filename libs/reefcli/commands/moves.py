"""What `reef rollback` and `reef promote` share: ask for a move of the head, and wait until it is served."""

import time
from typing import Any

from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway


def move_head(gateway: Gateway, scenario: str, verb: str, release_id: str, wait_s: float) -> dict[str, Any]:
    """Ask for it, and wait until another release serves. Returns the release that serves then.

    Raises:
        CommandFailed: refused, or not served within `wait_s` seconds.
    """
    before = current(gateway, scenario)
    gateway.post(f"/reef/scenarios/{scenario}/{verb}", {"release_id": release_id})
    deadline = time.monotonic() + wait_s
    while True:
        now = current(gateway, scenario)
        if now is not None and now.get("release_id") != (before or {}).get("release_id"):
            return now
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"the {verb} of {scenario!r} to {release_id} was accepted, but is not served after {wait_s:.0f} s. "
                "`reef status` shows what the publisher is doing."
            )
        time.sleep(0.2)


def current(gateway: Gateway, scenario: str) -> dict[str, Any] | None:
    """The release that serves a scenario now."""
    chain: list[dict[str, Any]] = gateway.get(f"/reef/scenarios/{scenario}/releases")["releases"]
    return next((release for release in chain if release.get("current")), None)
