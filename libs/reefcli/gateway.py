"""The gateway's HTTP surface, as the commands use it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from reefcli.errors import CommandFailed
from reefcli.options import no_stack_words, state_dir_words
from reefstack.state import running

_TIMEOUT_S = 45.0  # a rollback is answered when it is served


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway, and the bearer token for it (empty: none)."""

    url: str
    token: str = ""
    state_dir: Path | None = None
    """The directory whose stack it belongs to, where it was found that way."""

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON that GET answers with.

        Raises:
            CommandFailed: no answer, or an error, with advice.
        """
        params = {key: value for key, value in query.items() if value is not None}
        return self._json("GET", path, params=params)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON that POST answers with. Raises as `get`."""
        return self._json("POST", path, json=body)

    def download(self, path: str) -> bytes:
        """Return the bytes that GET answers with. Raises as `get`."""
        return self._ask("GET", path).content

    def _json(self, method: str, path: str, **options: Any) -> Any:
        try:
            return self._ask(method, path, **options).json()
        except ValueError:
            fault = f"{self.url}{path} did not answer with JSON"
            raise CommandFailed(f"{fault}: is that a Reef gateway?") from None

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        # trust_env: a proxy of the shell is not meant for a gateway on this machine.
        options = {**options, "headers": headers, "timeout": _TIMEOUT_S}
        try:
            with httpx.Client(base_url=self.url, trust_env=False) as client:
                response = client.request(method, path, **options)
                response.raise_for_status()
                return response
        except httpx.HTTPStatusError as error:
            hint = state_dir_words(self.state_dir) if self.state_dir else ""
            raise CommandFailed(_explain(error.response, hint, token=bool(self.token))) from None
        except httpx.TimeoutException:
            fault = f"{self.url} did not answer within {_TIMEOUT_S:.0f} s"
            raise CommandFailed(f"{fault}; look at its log, or at `reef status`") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise CommandFailed(self._silent(error)) from None

    def _silent(self, error: Exception) -> str:
        place = self.state_dir
        if place is None:
            fault = f"no gateway answers at {self.url} ({error})"
            return f"{fault}. Is the URL right, and does Reef run there?"
        state = running(place)
        if state is None:
            return no_stack_words(place, "name one with --url")
        if state.phase == "starting":
            return f"the Reef on {place} is starting, {state.progress}; ask again in a moment"
        fault = f"the gateway of the Reef on {place} does not answer at {self.url} ({error})"
        return f"{fault}; see {place}/logs/gateway.log"


def find(url: str | None, state_dir: Path) -> Gateway:
    """Return the gateway: `--url`, else `$REEF_GATEWAY_URL`, else the running stack's.

    The usual port is never tried: another program may listen there.

    Raises:
        CommandFailed: no stack runs on the state directory.
    """
    # Not an option: it would stand in the shell's history.
    token = os.environ.get("REEF_TOKEN", "")
    if named := url or os.environ.get("REEF_GATEWAY_URL"):
        return Gateway(named.rstrip("/"), token)
    state = running(state_dir)
    if state is None:
        raise CommandFailed(no_stack_words(state_dir, "name one with --url"))
    if not state.urls.get("gateway"):
        fault = f"the Reef that runs on {state_dir} has no gateway"
        raise CommandFailed(f"{fault}; name one with --url")
    return Gateway(state.urls["gateway"].rstrip("/"), token, state_dir)


# The gateway speaks to HTTP clients; a person at a terminal has commands.
_COMMANDS = (
    (re.compile(r"(see )?/reef/scenarios/([^/\s]+)/(releases|records)"), r"\1`reef \3 \2{where}`"),
    (re.compile(r"(?:/readyz and )?/reef/status says?"), "`reef status{where}` says"),
    (re.compile(r"/reef/(status|records)\b"), r"`reef \1{where}`"),
)


def _explain(response: httpx.Response, where: str, *, token: bool) -> str:
    status = response.status_code
    try:
        error = response.json().get("error", {})
    except (ValueError, AttributeError):
        error = response.text[:200]
    facts = error if isinstance(error, dict) else {"message": error}
    message = str(facts.get("message", ""))
    for path, command in _COMMANDS:
        message = path.sub(command, message)
    message = message.replace("{where}", where).rstrip(".") or response.reason_phrase
    hints = {
        401: "The token in $REEF_TOKEN is not one that this Reef knows.",
        403: "The token in $REEF_TOKEN lacks the scope for this.",
        503: f"`reef status{where}` shows what is not ready.",
    }
    if not token:
        hints[401] = "Put a token into $REEF_TOKEN."
    hint = "" if facts.get("code") == "scenario_not_allowed" else hints.get(status, "")
    return f"{message} (HTTP {status}). {hint}".rstrip()
