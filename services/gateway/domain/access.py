"""Bearer tokens: scopes, and optionally scenarios and limits."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from services.gateway.domain.errors import ApiError
from services.gateway.domain.rate import NO_LIMIT, Limit

Scope = Literal["infer", "report", "read", "admin"]
SCOPES: tuple[Scope, ...] = ("infer", "report", "read", "admin")
_NAME_HEX = 16  # of the digest: enough to tell tokens apart, of no use for finding one


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a bearer.

    Requests of one `bearer` count together.
    """

    scopes: frozenset[str]
    scenarios: frozenset[str] | None
    bearer: str = ""
    limit: Limit = NO_LIMIT

    def check(self, scope: Scope, scenario: str | None) -> None:
        """Raise ApiError (403) if the scope or the scenario is not granted.

        `admin` includes all scopes.
        """
        if scope not in self.scopes and "admin" not in self.scopes:
            words = f"This token does not have the scope {scope!r}."
            raise ApiError(403, words, code="missing_scope")
        if self.scenarios is not None and scenario is not None and scenario not in self.scenarios:
            words = f"This token is not good for scenario {scenario!r}."
            raise ApiError(403, words, code="scenario_not_allowed")

    def sees(self, scenario: str) -> bool:
        """Return whether the scenario may be shown."""
        return self.scenarios is None or scenario in self.scenarios


class Token(BaseModel):
    """A row of the tokens file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...] = Field(min_length=1)
    scenarios: tuple[str, ...] | None = None
    """the scenarios that it is good for; absent: all"""
    requests_per_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    """instead of the gateway's setting; 0: no limit"""
    burst_requests: int | None = Field(None, ge=0)
    """instead of the gateway's setting"""
    concurrent_requests: int | None = Field(None, ge=0)
    """instead of the gateway's setting; 0: no limit"""

    def grant(self, default: Limit) -> Grant:
        """Return the bearer's rights; `default` fills the limits that the row does not state."""
        limit = Limit(
            default.per_s if self.requests_per_s is None else self.requests_per_s,
            default.burst if self.burst_requests is None else self.burst_requests,
            default.concurrent if self.concurrent_requests is None else self.concurrent_requests,
        )
        scenarios = None if self.scenarios is None else frozenset(self.scenarios)
        return Grant(frozenset(self.scopes), scenarios, self.sha256[:_NAME_HEX], limit)


class Access:
    """The tokens."""

    def __init__(self, tokens: Sequence[Token] = (), default: Limit = NO_LIMIT) -> None:
        # all grants are made once: the hot path looks them up
        self._grants = [(token.sha256, token.grant(default)) for token in tokens]
        self._everything = Grant(frozenset(SCOPES), None, limit=default)

    @property
    def guarded(self) -> bool:
        """True if a token is needed."""
        return bool(self._grants)

    @property
    def limited(self) -> bool:
        """True if any requests are counted."""
        grants = [self._everything, *(grant for _, grant in self._grants)]
        return any(grant.limit.counts for grant in grants)

    def grant(self, headers: Mapping[bytes, bytes]) -> Grant:
        """Return the rights of the bearer of these headers.

        Raises:
            ApiError: 401.
        """
        if not self._grants:  # the gateway then listens on loopback only
            return self._everything
        given = headers.get(b"authorization", b"")
        bearer = given[:7].lower() == b"bearer "
        secret = given[7:].strip() if bearer else headers.get(b"x-api-key", b"")
        digest = hashlib.sha256(secret).hexdigest()
        # all are compared, so that the time does not tell the position of the match
        found = [grant for known, grant in self._grants if hmac.compare_digest(known, digest)]
        if not (secret and found):
            words = "Send a valid token as `Authorization: Bearer …` or `x-api-key`."
            raise ApiError(401, words, code="invalid_api_key")
        return found[0]
