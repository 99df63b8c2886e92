"""The gateway's HTTP surface, as the commands use it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from reefcli.errors import CommandFailed
from reefcli.stack.state import running

_TIMEOUT_S = 45.0  # a rollback is answered when it is served


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway, and the bearer token that it is talked to with (empty: none)."""

    url: str
    token: str = ""

    def get(self, path: str, **query: Any) -> Any:
        """The JSON that GET answers with.

        Raises:
            CommandFailed: nobody answers, or the answer is an error; the message says what to do.
        """
        return self._ask("GET", path, params={key: value for key, value in query.items() if value is not None})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that POST answers with. Raises as `get`."""
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            # trust_env: a proxy of the shell is not meant for a gateway on this machine
            with httpx.Client(base_url=self.url, headers=headers, timeout=_TIMEOUT_S, trust_env=False) as client:
                response = client.request(method, path, **options)
                response.raise_for_status()
                return response.json()
        except httpx.HTTPStatusError as error:
            raise CommandFailed(_explain(error.response)) from None
        except httpx.TimeoutException:
            raise CommandFailed(f"{self.url} did not answer within {_TIMEOUT_S:.0f} s; look at its log, or at `reef status`") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise CommandFailed(f"no gateway answers at {self.url} ({error}). Start one with: reef serve -c serve.yaml") from None
        except ValueError:
            raise CommandFailed(f"{self.url}{path} did not answer with JSON: is that a Reef gateway?") from None


def find(url: str | None, state_dir: Path) -> Gateway:
    """The gateway to talk to: `--url`, else `$REEF_GATEWAY_URL`, else the stack that runs on the state directory, else port 8900."""
    chosen = url or os.environ.get("REEF_GATEWAY_URL")
    if not chosen:
        state = running(state_dir)
        chosen = state.urls.get("gateway") if state else None
    return Gateway((chosen or "http://127.0.0.1:8900").rstrip("/"), os.environ.get("REEF_TOKEN", ""))


def _explain(response: httpx.Response) -> str:
    """The gateway's own message, and what to do where that follows from the status."""
    try:
        error = response.json().get("error", {})
        message = str(error.get("message", "")) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        message = response.text[:200]
    hint = {
        401: " Put a token into $REEF_TOKEN.",
        403: " The token in $REEF_TOKEN lacks the scope for this.",
        503: " `reef status` shows what is not ready.",
    }.get(response.status_code, "")
    return f"{message or response.reason_phrase} (HTTP {response.status_code}).{hint}"
