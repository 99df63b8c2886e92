"""All routes as a FastAPI application."""

import secrets
from typing import Annotated

from fastapi import Depends, FastAPI, Header
from starlette.exceptions import HTTPException
from starlette.types import Lifespan

from services.engine.domain.errors import ForbiddenError
from services.engine.routes import admin, chat, completions, errors, models, operations, tokens
from services.engine.routes.exchange import EngineParam


def build_api(lifespan: Lifespan[FastAPI]) -> FastAPI:
    """The application; `lifespan` sets `app.state.engine`."""
    app = FastAPI(title="Reef serving node", lifespan=lifespan)
    for part in (chat, completions, tokens, models, admin):
        app.include_router(part.router, dependencies=[Depends(_require_key)])
    app.include_router(operations.router)
    # Errors of a route are answered by the route: these are unknown paths and methods.
    app.add_exception_handler(HTTPException, errors.handle)
    return app


async def _require_key(engine: EngineParam, authorization: Annotated[str, Header()] = "") -> None:
    # The key opens the administration routes too: it is for Reef's own services, not for clients.
    key = engine.settings.api_key.get_secret_value()
    given = authorization.removeprefix("Bearer ")
    if key and not secrets.compare_digest(given.encode(), key.encode()):
        raise ForbiddenError("the API key is missing or wrong")
