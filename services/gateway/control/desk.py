"""The parts of the gateway that the control routes share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import Path, Request, Response
from pydantic import BaseModel

from reefcommon.ids import SCENARIO_PATTERN
from services.gateway.control.fanout import Fanout
from services.gateway.control.rejections import Rejections
from services.gateway.control.scenarios import Scenarios
from services.gateway.control.scopes import Allow
from services.gateway.control.status import SystemStatus
from services.gateway.domain.access import Scope
from services.gateway.domain.errors import ApiError
from services.gateway.exchange.intake import Intake
from services.gateway.ports import Reads
from services.gateway.upstream.contents import Contents

if TYPE_CHECKING:
    from services.gateway.control.proposals import Proposals

Scenario = Annotated[str, Path(pattern=SCENARIO_PATTERN)]


@dataclass(frozen=True)
class Desk:
    """The parts of the gateway that the control routes use."""

    intake: Intake
    scenarios: Scenarios
    reads: Reads
    status: SystemStatus
    fanout: Fanout
    rejections: Rejections
    started_at: int
    contents: Contents | None = None
    proposals: "Proposals | None" = None

    def allow(self, scope: Scope) -> Allow:
        """Return the dependency by which a route declares its scope."""
        return Allow(scope, self.intake.access.grant)

    def may_read(self, request: Request) -> bool:
        """Return whether reasons and addresses may be shown to the sender of a request."""
        try:
            grant = self.intake.access.grant(dict(request.scope["headers"]))
            grant.check("read", None)
        except ApiError:
            return False
        return grant.scenarios is None

    def known(self, scenario: Scenario) -> None:
        """Refuse reads of an unknown scenario with 404. A dependency."""
        self.scenarios.exists(scenario, before_heads=True)

    async def relay(self, path: str, page: BaseModel | None = None) -> Response:
        """Return the experience service's answer. Raises ApiError with its refusal."""
        query = page.model_dump(mode="json", exclude_none=True) if page is not None else {}
        given = {
            name: value if isinstance(value, str) else orjson.dumps(value).decode()
            for name, value in query.items()
        }
        status, body = await self.reads.get(path, given)
        if status >= 300:
            raise _refusal(status, body)
        return Response(body, status_code=status, media_type="application/json")


def answer_json(body: Any, status: int = 200) -> Response:
    """Return a JSON answer; times and other types as text."""
    encoded = orjson.dumps(body, default=str)
    return Response(encoded, status_code=status, media_type="application/json")


def _refusal(status: int, body: bytes) -> ApiError:
    try:
        error = orjson.loads(body)["error"]
        message, code = str(error["message"]), str(error["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = "The experience service could not answer; /reef/status may say why."
        code = "reads_failed"
    if status in {400, 404}:
        return ApiError(status, message, code=code)
    return ApiError(503, message, code=code, retry_after_s=2)
