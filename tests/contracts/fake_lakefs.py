"""A small lakeFS on loopback: the API calls that the adapter makes, over real HTTP, with branches, commits, merges and tags in memory."""

import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

Tree = dict[str, bytes]


def overlaid(tree: Tree, changes: dict[str, bytes | None]) -> Tree:
    return {path: data for path, data in {**tree, **changes}.items() if data is not None}


@dataclass
class Branch:
    commit: str
    staged: dict[str, bytes | None] = field(default_factory=dict)


@dataclass
class FakeLakeFS:
    """State of one repository named `artifacts`."""

    url: str = ""
    password: str = "secret"
    commits: dict[str, Tree] = field(default_factory=lambda: {"c0": {}})
    removed: dict[str, set[str]] = field(default_factory=dict)
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=lambda: {"main": Branch("c0")})
    tags: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    fail_with: int = 0

    def tree(self, ref: str) -> Tree | None:
        if ref in self.branches:
            return overlaid(self.commits[self.branches[ref].commit], self.branches[ref].staged)
        return self.commits.get(self.tags.get(ref, ref))

    def commit(self, tree: Tree, metadata: dict[str, str]) -> str:
        commit = uuid.uuid4().hex
        self.commits[commit], self.metadata[commit] = tree, metadata
        return commit


class Refused(Exception):
    pass


@contextmanager
def fake_lakefs() -> Iterator[FakeLakeFS]:
    state = FakeLakeFS()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Api,), {"state": state}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.url = f"lakefs://key:{state.password}@127.0.0.1:{server.server_port}/artifacts"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Api(BaseHTTPRequestHandler):
    state: FakeLakeFS
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self._body()
        match = re.fullmatch(r"/api/v1/repositories/artifacts(/.*)?", parts.path)
        try:
            if self.state.fail_with:
                raise Refused(self.state.fail_with)
            if "authorization" not in self.headers:
                raise Refused(401)
            if match is None:
                raise Refused(404)
            segments = [unquote(segment) for segment in (match[1] or "").split("/") if segment]
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            with self.state.lock:
                status, answer, headers = self._answer(segments, query, body)
        except Refused as refusal:
            status, answer, headers = (
                refusal.args[0],
                json.dumps({"message": "refused"}).encode(),
                {},
            )
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if self.command != "HEAD":
            self.send_header("content-length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - called by name

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        chunks = b""
        while size := int(self.rfile.readline(), 16):
            chunks += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return chunks

    def _answer(  # noqa: C901 - one branch for each route of the server
        self, segments: list[str], query: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        state = self.state
        match self.command, segments:
            case "GET", []:
                return _json(
                    200,
                    id="artifacts",
                    creation_date=0,
                    default_branch="main",
                    storage_namespace="local://artifacts",
                )
            case "POST", ["branches"]:
                wanted = json.loads(body)
                if not re.fullmatch(r"\w[-\w]*", wanted["name"]):
                    raise Refused(400)
                if wanted["name"] in state.branches:
                    raise Refused(409)
                state.branches[wanted["name"]] = Branch(self._resolve(wanted["source"]))
                return (
                    201,
                    state.branches[wanted["name"]].commit.encode(),
                    {"content-type": "text/html"},
                )
            case "GET", ["branches", name]:
                return _json(200, id=name, commit_id=self._resolve(name))
            case "DELETE", ["branches", name]:
                del state.branches[name]
                return 204, b"", {}
            case "POST", ["branches", name, "objects"]:
                state.branches[name].staged[query["path"]] = body
                return _json(
                    201,
                    path=query["path"],
                    path_type="object",
                    physical_address="x",
                    checksum="x",
                    mtime=0,
                    size_bytes=len(body),
                )
            case "POST", ["branches", name, "objects", "delete"]:
                state.branches[name].staged |= dict.fromkeys(json.loads(body)["paths"])
                return _json(200, errors=[])
            case "DELETE", ["tags", name]:
                del state.tags[name]
                return 204, b"", {}
            case "POST", ["branches", name, "commits"]:
                return self._commit(state.branches[name], json.loads(body))
            case "POST", ["refs", source, "merge", target]:
                return self._merge(source, target)
            case "POST", ["tags"]:
                wanted = json.loads(body)
                if wanted["id"] in state.tags:
                    raise Refused(409)
                state.tags[wanted["id"]] = self._resolve(wanted["ref"])
                return _json(201, id=wanted["id"], commit_id=state.tags[wanted["id"]])
            case (("GET" | "HEAD"), ["refs", ref, "objects"]):
                return self._object(ref, query["path"])
        raise Refused(404)

    def _resolve(self, ref: str) -> str:
        state = self.state
        found = state.branches[ref].commit if ref in state.branches else state.tags.get(ref, ref)
        if found not in state.commits:
            raise Refused(404)
        return found

    def _commit(self, branch: Branch, wanted: dict) -> tuple[int, bytes, dict[str, str]]:
        merged = overlaid(self.state.commits[branch.commit], branch.staged)
        if merged == self.state.commits[branch.commit]:
            raise Refused(400)
        removed = {path for path, data in branch.staged.items() if data is None}
        branch.commit, branch.staged = self.state.commit(merged, wanted.get("metadata") or {}), {}
        self.state.removed[branch.commit] = removed
        return _json(
            201,
            id=branch.commit,
            parents=[],
            committer="key",
            message=wanted["message"],
            creation_date=0,
            meta_range_id="m",
            metadata={},
        )

    def _merge(self, source: str, target: str) -> tuple[int, bytes, dict[str, str]]:
        branch = self.state.branches[target]
        before = self.state.commits[branch.commit]
        brought = self._resolve(source)
        merged = overlaid(
            before,
            {**self.state.commits[brought], **dict.fromkeys(self.state.removed.get(brought, ()))},
        )
        if merged == before:
            raise Refused(400)
        branch.commit = self.state.commit(merged, {})
        return _json(200, reference=branch.commit)

    def _object(self, ref: str, path: str) -> tuple[int, bytes, dict[str, str]]:
        data = (self.state.tree(ref) or {}).get(path)
        if data is None:
            raise Refused(404)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if wanted is None:
            return 200, data, {"content-type": "application/octet-stream"}
        start, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        if start >= len(data):
            return 416, b"", {"content-range": f"bytes */{len(data)}"}
        return (
            206,
            data[start : end + 1],
            {
                "content-range": f"bytes {start}-{end}/{len(data)}",
                "content-type": "application/octet-stream",
            },
        )


def _json(status: int, **fields: object) -> tuple[int, bytes, dict[str, str]]:
    return status, json.dumps(fields).encode(), {"content-type": "application/json"}
