"""A scripted model behind an OpenAI endpoint: a function of messages and seed."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Json = dict[str, Any]
Reply = Callable[[list[Json], int], str | Mapping[str, Any]]
"""Messages and seed -> a text, or a message with `content` or a `call`: (tool, arguments)."""


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
        messages = [self._message(self.server.reply(asked, seed + at)) for at in range(count)]
        read = len(json.dumps(asked).split())
        said = sum(len((message["content"] or "call").split()) for message in messages)
        usage = {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
        about = {"id": "scripted", "created": 0, "model": body.get("model", "")}
        ends = ["tool_calls" if "tool_calls" in message else "stop" for message in messages]
        if not body.get("stream"):
            choices = [
                {"index": at, "message": message, "finish_reason": end}
                for at, (message, end) in enumerate(zip(messages, ends, strict=True))
            ]
            whole = {**about, "object": "chat.completion", "choices": choices, "usage": usage}
            self._answer(whole)
            return
        deltas = [
            delta
            for at, (message, end) in enumerate(zip(messages, ends, strict=True))
            for delta in (
                {"index": at, "delta": _numbered(message), "finish_reason": None},
                {"index": at, "delta": {}, "finish_reason": end},
            )
        ]
        parts: list[Json] = [
            *({"choices": [one]} for one in deltas),
            {"choices": [], "usage": usage},
        ]
        chunks = [{**about, "object": "chat.completion.chunk", **part} for part in parts]
        frames = [*map(json.dumps, chunks), "[DONE]"]
        self._send("text/event-stream", "".join(f"data: {frame}\n\n" for frame in frames))

    def _message(self, reply: str | Mapping[str, Any]) -> Json:
        message: Mapping[str, Any] = {"content": reply} if isinstance(reply, str) else reply
        if "call" not in message:
            return {"role": "assistant", "content": message["content"]}
        name, arguments = message["call"]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call-{next(self.server.calls)}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def _answer(self, body: Json) -> None:
        self._send("application/json", json.dumps(body))

    def _send(self, kind: str, text: str) -> None:
        payload = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_words: object) -> None:
        """Print no line for a request."""


def _numbered(message: Json) -> Json:
    calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls", ()))]
    return {**message, **({"tool_calls": calls} if calls else {})}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, reply: Reply) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.reply, self.calls = reply, itertools.count(1)


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
