"""A scripted judge behind an OpenAI endpoint: it reads the next state by rules."""

#     python -m recipes.openclaw_rl.examples.greeting.judge_server --port 8931
#
# A model of 135M parameters cannot judge. This judge sees the prompts of a real one and answers in
# the same form, but understands only thanks and wishes of the form "greet me with WORD".

import argparse
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from recipes.openclaw_rl.judge import HINT_END, HINT_START, NEXT

_NEXT = re.compile(rf'<{NEXT} role="(\w+)">\n(.*?)\n</{NEXT}>', re.DOTALL)
_WISH = re.compile(r"\bgreet(?:ed)?(?: me)? with (\w+)", re.IGNORECASE)
_THANKS = re.compile(r"\bthank", re.IGNORECASE)
_ERROR = re.compile(r"\b(error|exception|failed)\b", re.IGNORECASE)


def judged(messages: list[dict[str, Any]]) -> str:
    """Return the judge's answer to a question of `recipes.openclaw_rl.judge`."""
    wants_hint = HINT_START in str(messages[0].get("content"))
    found = _NEXT.findall(str(messages[-1].get("content")))
    role, words = found[-1] if found else ("", "")
    if wants_hint:
        wish = _WISH.search(words)
        if wish is None or _THANKS.search(words):
            return r"Nothing here that the assistant could have known. \boxed{-1}"
        hint = f"Greet the user with {wish[1]} first."
        return rf"The user says how to be greeted. \boxed{{1}} {HINT_START}{hint}{HINT_END}"
    if role == "tool":
        vote = -1 if _ERROR.search(words) else 1
    else:
        vote = 1 if _THANKS.search(words) else -1 if _WISH.search(words) else 0
    return rf"The next state is of the role {role or 'none'}. \boxed{{{vote}}}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = judged(body["messages"])
        message = {"role": "assistant", "content": text}
        choices = [
            {"index": index, "message": message, "finish_reason": "stop"}
            for index in range(int(body.get("n") or 1))
        ]
        read, said = (len(each.split()) for each in (json.dumps(body["messages"]), text))
        usage = {
            "prompt_tokens": read,
            "completion_tokens": said,
            "total_tokens": read + said,
        }
        answer = {
            "id": "judge",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model", ""),
            "choices": choices,
            "usage": usage,
        }
        payload = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_words: object) -> None:
        """Print nothing for a request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def serving(port: int = 0) -> Iterator[str]:
    """Run the judge on loopback in a thread. Yields its base URL. Port 0: a free port."""
    server = _Server(("127.0.0.1", port), _Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8931)
    with serving(parser.parse_args().port) as url:
        print(f"the scripted judge listens on {url}; Ctrl-C stops it")  # noqa: T201
        with suppress(KeyboardInterrupt):
            signal.pause()
