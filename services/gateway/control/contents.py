"""The files of a release, for those who install it: a harness, a solution, an adapter."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import FileResponse

from reefcommon.events import Kind
from services.gateway.control.desk import Desk, Scenario
from services.gateway.upstream.contents import not_found

ReleaseId = Annotated[str, Path(min_length=1, max_length=200)]
# Never shown by a browser as a page of this origin.
_HEADERS = {"x-content-type-options": "nosniff", "content-disposition": "attachment"}
_BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}


def content_routes(desk: Desk) -> APIRouter:
    """Return the routes to a release's files; none without an artifact store."""
    routes = APIRouter(prefix="/reef/scenarios/{scenario}/releases", tags=["releases"])
    contents = desk.contents
    if contents is None:
        return routes
    read = [Depends(desk.allow("read"))]

    @routes.get("/{release_id}/contents/{kind}", dependencies=read)
    async def content(scenario: Scenario, release_id: ReleaseId, kind: Kind) -> Response:
        """List the files of a release's content of a kind, with their digests."""
        tree, manifest = await contents.find(scenario, release_id, kind)
        rows = [
            {"path": name, "sha256": sha256, "size_bytes": (tree / name).stat().st_size}
            for name, sha256 in manifest.files.items()
        ]
        about = {"content_id": manifest.content_id, "kind": kind, "metrics": manifest.metrics}
        return Response(orjson.dumps(about | {"files": rows}), media_type="application/json")

    @routes.get(
        "/{release_id}/contents/{kind}/{path:path}",
        dependencies=read,
        response_class=FileResponse,
        responses=_BYTES,
    )
    async def file(
        scenario: Scenario, release_id: ReleaseId, kind: Kind, path: str, request: Request
    ) -> Response:
        """Return a file of a release's content."""
        tree, manifest = await contents.find(scenario, release_id, kind)
        sha256 = manifest.files.get(path)
        if sha256 is None:
            raise not_found(f"This content has no file {path[:200]!r}.")
        tag = f'"{sha256}"'
        headers = {**_HEADERS, "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return FileResponse(tree / path, headers=headers, media_type="application/octet-stream")

    return routes
