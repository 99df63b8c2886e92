"""Scopes of routes, declared at each; the gateway does not start if a route declares none."""

from collections.abc import Callable, Iterable, Mapping

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from services.gateway.domain.access import Grant, Scope

OPEN: Mapping[str, str] = {
    "/": "the same for every installation",
    "/healthz": "a supervisor has no token, and learns only that the process runs",
    "/readyz": "the same; only the scope `read` sees the reasons",
    "/metrics": "Prometheus; numbers with routes and nodes as labels, no content of requests",
    "/openapi.json": "the same for every installation",
    "/docs": "the same for every installation",
    "/docs/{name}": "the same for every installation",
}
"""Paths that need no token, with the reason."""


class Allow:
    """A dependency that checks the token's scope, and the scenario if the path has one."""

    def __init__(self, scope: Scope, grant: Callable[[dict[bytes, bytes]], Grant]) -> None:
        self.scope = scope
        self._grant = grant

    def __call__(self, request: Request) -> Grant:
        """Raise ApiError (401, 403), or return the rights of the bearer."""
        grant = self._grant(dict(request.scope["headers"]))
        grant.check(self.scope, request.path_params.get("scenario"))
        return grant


def declared(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], Scope | None]:
    """Return the scope of every (method, path); None if it is open.

    Raises:
        TypeError: a route declares none and is not open.
    """
    found: dict[tuple[str, str], Scope | None] = {}
    for route in routes:
        if not isinstance(route, Route):
            raise TypeError(f"{route!r} is no plain route, so its scope is unknown")
        scope = _scope(route.dependant) if isinstance(route, APIRoute) else None
        if scope is None and route.path not in OPEN:
            raise TypeError(
                f"{route.path} declares no scope: give it Depends(desk.allow(…)), "
                "or a reason in services.gateway.control.scopes.OPEN"
            )
        for method in (route.methods or set()) - {"HEAD"}:
            found[method, route.path_format] = scope
    return found


def _scope(dependant: Dependant) -> Scope | None:
    for inner in dependant.dependencies:
        if isinstance(inner.call, Allow):
            return inner.call.scope
        if (deeper := _scope(inner)) is not None:
            return deeper
    return None
