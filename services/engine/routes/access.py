"""The node's API key."""
# It opens the administration routes too: it is for Reef's own services, not for their clients.

import secrets
from typing import Annotated

from fastapi import Depends, Header

from services.engine.domain.errors import ForbiddenError
from services.engine.engine import Engine
from services.engine.routes.exchange import engine_of


async def require_key(
    engine: Annotated[Engine, Depends(engine_of)], authorization: Annotated[str, Header()] = ""
) -> None:
    """FastAPI dependency. Raises `ForbiddenError`."""
    key = engine.settings.api_key.get_secret_value()
    given = authorization.removeprefix("Bearer ")
    if key and not secrets.compare_digest(given.encode(), key.encode()):
        raise ForbiddenError("the API key is missing or wrong")
