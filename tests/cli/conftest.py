"""The fake gateway, running."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.cli.fake_gateway import CHAIN, REJECTED, FakeGateway, release


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    fake = FakeGateway()
    fake.answers = {
        "/reef/scenarios": (200, {"data": [{"scenario": "default", "head": CHAIN[0]}]}),
        "/reef/scenarios/default/releases": (200, {"data": CHAIN}),
        "/reef/scenarios/default/rejections": (200, {"data": REJECTED}),
        "/reef/scenarios/default/rollback": (
            200,
            release("rel-3", current=True, parent="rel-2", operation="rollback"),
        ),
        "/reef/scenarios/default/promote": (200, release("rel-4", current=True, parent="rel-2")),
        "/reef/scenarios/default/records": (
            200,
            {
                "data": [
                    {
                        "record_id": "rec-1",
                        "at": "2026-01-01T00:00:00Z",
                        "outcome": "ok",
                        "session_id": "s",
                        "duration_ms": 12.5,
                    }
                ]
            },
        ),
        "/reef/records/rec-1": (
            200,
            {
                "record": {"event_id": "rec-1", "request": {"model": "reef"}},
                "session_id": "s",
                "reports": [],
            },
        ),
        "/reef/records/gone": (
            404,
            {
                "error": {
                    "message": "no record gone",
                    "type": "invalid_request_error",
                    "code": "record_not_found",
                }
            },
        ),
        "/reef/scenarios/secret/releases": (
            401,
            {"error": {"message": "No bearer token.", "type": "x", "code": "no_token"}},
        ),
        "/reef/status": (
            200,
            {
                "services": {
                    "gateway": {"failures": {}, "lag": {"reef.releases.v1": 0}, "last_error": None},
                    "trainer": {"failures": {"http": "does not answer"}},
                },
                "heads": {
                    "default": {
                        "release_id": "rel-2",
                        "operation": "training",
                        "created_at": "2026-01-01T00:00:00Z",
                    }
                },
                "engines": [],
            },
        ),
    }

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            fake.asked.append(
                (
                    self.command,
                    self.path,
                    self.headers.get("authorization", ""),
                    json.loads(body or b"null"),
                )
            )
            status, value = fake.answers.get(
                urlsplit(self.path).path, (404, {"error": {"message": "not found"}})
            )
            payload = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = answer  # noqa: N815 - the names of http.server

        def log_message(self, *_args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("REEF_GATEWAY_URL", fake.url)
    monkeypatch.delenv("REEF_TOKEN", raising=False)
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()
