"""A model that the test scripts, and the runner of a stand-in agent."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from reefcommon.config_agent import AgentSection
from reefcommon.errors import BadConfig
from reefcommon.evaluator import Task
from reefkit.episodes import isolation
from reefkit.episodes.relay import Upstream
from reefkit.episodes.runner import AgentRunner, Seat


def _fault() -> str:
    try:
        isolation.check("bubblewrap")
    except BadConfig as error:
        return str(error)
    return ""


needs_bubblewrap = pytest.mark.skipif(bool(_fault()), reason=_fault() or "it works")
ISOLATIONS = ["local", pytest.param("bubblewrap", marks=needs_bubblewrap)]
# Other tests run beside these, and look for what their own agents have left.
SLEEP = f"987.{os.getpid()}"
PROGRAM = Path(__file__).parent / "standin/program"


@dataclass
class Model:
    """An endpoint. `answer(messages)` is its text; a number is a status without an answer."""

    answer: Callable[[list[dict[str, Any]]], str | int] = lambda _messages: "done"
    asked: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    url: str = ""


@pytest.fixture(name="model")
def scripted_model() -> Iterator[Model]:
    found = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.asked.append((self.path, headers, body))
            said = found.answer(body["messages"])
            status = said if isinstance(said, int) else 200
            if isinstance(said, str):
                said = re.sub("(?m)^fork$", f"fork {SLEEP}", said)
            sent = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def runner(tmp_path: Path) -> AgentRunner:
    return runner_at(tmp_path)


def runner_at(path: Path, **section: Any) -> AgentRunner:
    given = {"isolation": "local", "binary": PROGRAM, "timeout_s": 30, **section}
    made = AgentSection(adapter="tests.episodes.standin", **given)
    return AgentRunner(made, path / "episodes", path / "agents")


def seat(model: Model) -> Seat:
    headers = {"authorization": "Bearer reefs", "x-reef-scenario": "default"}
    return Seat(Upstream(model.url, headers, priority=10), "default", "reef")


def task(prompt: str = "label it", **more: Any) -> Task:
    return Task(prompt, ({"role": "user", "content": prompt},), {"prompt": prompt, **more})


def left_over() -> list[str]:
    """Return the processes that a forking agent has left behind."""
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line == f"sleep {SLEEP}"]
