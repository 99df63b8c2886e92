"""`/docs`: Swagger UI from the assets of a package, so that a browser asks no other host."""

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any

from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.routing import Route

from services.gateway.domain.access import Scope
from services.gateway.domain.dialects import COUNT_TOKENS, MESSAGES
from services.gateway.domain.exchange import HOT

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "if tokens are configured; x-reef-scope names the scope",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_TEXT, _TEXT_OR_NULL = {"type": "string"}, {"type": ["string", "null"]}
_FIELDS = {"message": _TEXT, "type": _TEXT, "code": _TEXT_OR_NULL, "param": _TEXT_OR_NULL}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def docs_routes(title: str) -> list[Route]:
    """Return the routes of the page and of its assets."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )
    script = re.search(rb"<script>(.*?)</script>", bytes(page.body), re.DOTALL)
    assert script is not None
    # The page's own script is allowed by its digest: 'unsafe-inline' would allow any.
    digest = b64encode(sha256(script[1]).digest()).decode()
    page.headers.update(
        _HEADERS | {"content-security-policy": _POLICY.format(f" 'sha256-{digest}'")}
    )

    async def docs(_request: Request) -> Response:
        return page

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise HTTPException(404)
        content = files("fastapi_offline").joinpath("static", name).read_bytes()
        return Response(content, media_type=_ASSETS[name], headers=_HEADERS)

    return [Route("/docs", docs), Route("/docs/{name}", asset)]


def complete(
    document: dict[str, Any], scopes: Mapping[tuple[str, str], Scope | None]
) -> dict[str, Any]:
    """Add to each operation of the document its scope, and the statuses that it refuses with."""
    components = document.setdefault("components", {})
    components["securitySchemes"] = _SCHEMES
    schemas = components.setdefault("schemas", {})
    schemas["Error"] = _object(error=_object(**_FIELDS))
    schemas["MessagesError"] = _object(type=_TEXT, error=_object(type=_TEXT, message=_TEXT))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["x-reef-scope"] = scopes[method.upper(), path]
            operation["security"] = [{"bearer": []}, {"apiKey": []}]
            responses = operation["responses"]
            responses.pop("422", None)  # FastAPI's own: here it is 400
            for status in _statuses(path, method):
                responses.setdefault(str(status), _refusal(path))
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document


def _refusal(path: str) -> dict[str, Any]:
    name = "MessagesError" if path in (MESSAGES, COUNT_TOKENS) else "Error"
    schema = {"$ref": f"#/components/schemas/{name}"}
    content = {"application/json": {"schema": schema}}
    return {"description": "refused or failed", "content": content}


def _statuses(path: str, method: str) -> set[int]:
    always = {400, 401, 403, 404, 429, 431, 500, 503}
    if path in HOT:
        return always | {405, 408, 409, 413, 414, 415, 501, 502, 504}
    return always | ({408, 409, 413, 415, 504} if method == "post" else set())
