"""A scripted model behind an OpenAI endpoint: a function of messages and seed."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Reply = Callable[[list[dict[str, Any]], int], str]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:
        row = {"id": "reef", "object": "model", "root": "reef", "max_model_len": 32_768}
        self._answer({"object": "list", "data": [row]})

    def do_POST(self) -> None:
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked, seed, count = body["messages"], int(body.get("seed") or 0), int(body.get("n") or 1)
        texts = [self.server.reply(asked, seed + number) for number in range(count)]
        choices = [
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for i, text in enumerate(texts)
        ]
        read, said = len(json.dumps(asked).split()), sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
        about = {"id": "scripted", "object": "chat.completion", "created": 0}
        model = body.get("model", "")
        self._answer({**about, "model": model, "choices": choices, "usage": usage})

    def _answer(self, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_words: object) -> None:
        """Print no line for a request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, reply: Reply) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.reply = reply


@contextmanager
def serving(reply: Reply, port: int = 0) -> Iterator[str]:
    """Run a model on loopback in a thread. Yields its URL without /v1. Port 0: a free port."""
    server = _Server(port, reply)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
