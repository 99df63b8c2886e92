"""All routes as a FastAPI application."""

from fastapi import Depends, FastAPI
from starlette.types import Lifespan

from services.engine.routes import (
    access,
    admin,
    chat,
    completions,
    errors,
    models,
    operations,
    tokens,
)


def build_api(lifespan: Lifespan[FastAPI]) -> FastAPI:
    """The application; `lifespan` sets `app.state.engine`."""
    app = FastAPI(title="Reef serving node", lifespan=lifespan)
    for part in (chat, completions, tokens, models, admin):
        app.include_router(part.router, dependencies=[Depends(access.require_key)])
    app.include_router(operations.router)
    errors.install(app)
    return app
