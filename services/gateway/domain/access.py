"""Who may do what: bearer tokens, kept as SHA-256 digests, with scopes and an optional list of scenarios."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from services.gateway.domain.errors import ApiError

Scope = Literal["infer", "report", "read", "admin"]
SCOPES: tuple[Scope, ...] = ("infer", "report", "read", "admin")


class Token(BaseModel):
    """One row of the tokens file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...] = Field(min_length=1)
    scenarios: tuple[str, ...] | None = Field(None, description="the scenarios that it is good for; absent: all")


@dataclass(frozen=True, slots=True)
class Grant:
    """What the bearer of a request may do."""

    scopes: frozenset[str]
    scenarios: frozenset[str] | None

    def check(self, scope: Scope, scenario: str | None) -> None:
        """Raises ApiError (403) where the scope or the scenario is not granted. `admin` includes the others."""
        if scope not in self.scopes and "admin" not in self.scopes:
            raise ApiError(403, f"This token does not have the scope {scope!r}.", code="missing_scope")
        if self.scenarios is not None and scenario is not None and scenario not in self.scenarios:
            raise ApiError(403, f"This token is not good for scenario {scenario!r}.", code="scenario_not_allowed")

    def sees(self, scenario: str) -> bool:
        """Whether the scenario may be shown."""
        return self.scenarios is None or scenario in self.scenarios


EVERYTHING = Grant(frozenset(SCOPES), None)


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens. Without any, everybody who can connect may do everything; then the gateway listens on loopback only."""

    tokens: tuple[Token, ...] = ()

    def grant(self, headers: Mapping[bytes, bytes]) -> Grant:
        """What the bearer of these headers may do.

        Raises:
            ApiError: 401.
        """
        if not self.tokens:
            return EVERYTHING
        given = headers.get(b"authorization", b"")
        secret = given[7:].strip() if given[:7].lower() == b"bearer " else headers.get(b"x-api-key", b"")
        digest = hashlib.sha256(secret).hexdigest()
        found = None
        for token in self.tokens:  # all of them, so that the time does not tell which one matched
            if hmac.compare_digest(token.sha256, digest):
                found = token
        if not secret or found is None:
            raise ApiError(401, "Send a valid token as `Authorization: Bearer …` or `x-api-key`.", code="invalid_api_key")
        return Grant(frozenset(found.scopes), frozenset(found.scenarios) if found.scenarios is not None else None)
