"""Reading of request bodies."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from services.engine.routes.errors import respond


class JsonRequest(Request):
    """Parses its body with orjson."""

    # The json module accepts NaN, Infinity and lone halves of characters, and each of them breaks a
    # place further in.

    async def json(self) -> Any:
        """The parsed body. Raises `json.JSONDecodeError`, or 415 if it is compressed."""
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise HTTPException(
                415,
                f"content-encoding {encoding!r} is not supported: send the body uncompressed",
                {"accept-encoding": "identity"},
            )
        return orjson.loads(await self.body())


class JsonRoute(APIRoute):
    """A route with `JsonRequest`, whose errors have OpenAI's shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(JsonRequest(request.scope, request.receive))
            except Exception as error:  # noqa: BLE001  Starlette's own 500 is text, and closes
                return respond(error)

        return handle
