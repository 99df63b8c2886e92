"""A user's machine: a bare HOME, a `npm` that installs a small agent, and a gateway of routes."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

# Writes the packages that it is asked for; each has a script that prints how it was started.
_NPM = r"""#!/usr/bin/env node
const fs = require("fs"), path = require("path");
const words = process.argv.slice(2);
fs.appendFileSync(process.env.FAKE_NPM_LOG, words.join(" ") + "\n");
if (process.env.FAKE_NPM_FAILS) { console.error("no space left"); process.exit(1); }
const prefix = words[words.indexOf("--prefix") + 1];
for (const word of words.slice(words.indexOf("--prefix") + 2)) {
  const name = word.slice(0, word.lastIndexOf("@"));
  const folder = path.join(prefix, "node_modules", name);
  fs.mkdirSync(path.join(folder, "dist"), { recursive: true });
  fs.mkdirSync(path.join(folder, "bin"), { recursive: true });
  if (name.startsWith("node-")) fs.symlinkSync(process.execPath, path.join(folder, "bin/node"));
  const agent = `#!/usr/bin/env node
    const ours = /^(PI|REEF|CLAUDE|CODEX|ANTHROPIC)_/;
    const env = Object.fromEntries(Object.entries(process.env).filter(([k]) => ours.test(k)));
    console.log(JSON.stringify({ argv: process.argv.slice(2), env, node: process.execPath }));
    process.exit(Number(process.env.AGENT_EXIT ?? 0));`;
  for (const name of ["dist/cli.js", "bin/codex.js", "bin/claude.exe"])
    fs.writeFileSync(path.join(folder, name), agent, { mode: 0o755 });
}
"""


@dataclass
class Machine:
    home: Path
    env: dict[str, str] = field(default_factory=dict)
    name: str = "pi"

    @property
    def root(self) -> Path:
        return self.home / ".local/share/reef" / self.name

    @property
    def wrapper(self) -> Path:
        return self.home / f".local/bin/reef-{self.name}"

    @property
    def npm_calls(self) -> list[str]:
        log = self.home / "npm.log"
        return log.read_text().splitlines() if log.exists() else []

    def prepare(self) -> None:
        tools = self.home / "tools"
        tools.mkdir(parents=True)
        (tools / "npm").write_text(_NPM)
        (tools / "npm").chmod(0o755)
        path = f"{tools}:{os.environ['PATH']}"
        log = str(self.home / "npm.log")
        self.env = {"HOME": str(self.home), "PATH": path, "FAKE_NPM_LOG": log, "REEF_TOKEN": "t 1'"}
        self.env["REEF_OFFER_MS"] = "30000"  # a busy machine answers late

    def run(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, input=stdin, env={**self.env, **env}, cwd=self.home,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def agent(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.wrapper), *words, **env)

    def started(self, *words: str, **env: str) -> dict[str, Any]:
        done = self.agent(*words, **env)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


class FakeGateway:
    """Answers each path (without its query) with JSON; records what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.cut_after: int | None = None  # bytes of an answer, before the connection closes
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                gateway.asked.append((self.path, headers, body))
                found = gateway.answers.get(self.path.partition("?")[0])
                sent = json.dumps(found if found is not None else {"error": {"message": "none"}})
                self.send_response(200 if found is not None else 404)
                self.send_header("content-length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent.encode()[: gateway.cut_after])

            do_POST = do_GET  # noqa: N815  the name is the library's

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "FakeGateway":
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
