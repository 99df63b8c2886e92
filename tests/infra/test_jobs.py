"""The one-shot jobs and scripts: they do what is missing, leave alone what is there, and say what is wrong."""

import hashlib
import json
import re
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from infra.jobs import model, setup
from infra.jobs.setup import ensure_repository, set_up_systems
from reefcommon import topics
from reefcommon.errors import BadConfig, Unavailable
from reefcommon.settings import SystemSettings
from reefkit.retry import GaveUp
from services.gateway.edge import tokens

ROOT = Path(__file__).parents[2]


class LakeFS(BaseHTTPRequestHandler):
    """The two calls that the job makes, over real HTTP."""

    repositories: list[dict]
    status = 0

    def do_GET(self):
        self._send(
            200,
            {
                "pagination": {
                    "has_more": False,
                    "max_per_page": 100,
                    "results": 1,
                    "next_offset": "",
                },
                "results": self.repositories,
            },
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        row = {**body, "id": body["name"], "creation_date": 0, "default_branch": "main"}
        self.repositories.append(row)
        self._send(201, row)

    def _send(self, status: int, body: dict):
        text = json.dumps({"message": "refused"} if self.status else body).encode()
        self.send_response(self.status or status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_args):
        pass


@contextmanager
def lakefs(status: int = 0):
    handler = type("Handler", (LakeFS,), {"repositories": [], "status": status})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"lakefs://key:secret@127.0.0.1:{server.server_port}/reef", handler
    finally:
        server.shutdown()
        server.server_close()


def test_the_repository_is_made_once():
    with lakefs() as (url, server):
        assert ensure_repository(url, "local://reef") is True
        assert [row["storage_namespace"] for row in server.repositories] == ["local://reef"]
        assert ensure_repository(url, "local://reef") is False
        assert len(server.repositories) == 1


def test_a_lakefs_that_refuses_is_named():
    with (
        lakefs(status=401) as (url, _),
        pytest.raises(Unavailable, match=r"http://127.0.0.1:\d+ cannot make the repository 'reef'"),
    ):
        ensure_repository(url, "local://reef")


def test_an_url_that_is_not_of_lakefs_is_refused():
    with pytest.raises(BadConfig, match="REEF_ARTIFACTS_URL"):
        ensure_repository("s3://bucket", "local://reef")


@pytest.mark.broker
async def test_topics_and_repository_are_there_after_the_job_and_after_a_second_one(
    kafka_bootstrap,
):
    from aiokafka.admin import AIOKafkaAdminClient

    with lakefs() as (url, server):
        system = SystemSettings(kafka_bootstrap=kafka_bootstrap, artifacts_url=url)
        await set_up_systems(system, setup.Settings(attempts=5))
        await set_up_systems(system, setup.Settings(attempts=1))
        assert len(server.repositories) == 1
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    try:
        assert {topic.name for topic in topics.ALL} <= set(await admin.list_topics())
    finally:
        await admin.close()


async def test_a_broker_that_never_comes_ends_the_job(unused_tcp_port):
    system = SystemSettings(kafka_bootstrap=f"127.0.0.1:{unused_tcp_port}")
    with pytest.raises(GaveUp, match="cannot create topics"):
        await set_up_systems(system, setup.Settings(attempts=1))


async def test_a_broker_that_takes_the_connection_and_says_nothing_is_not_waited_for():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        system = SystemSettings(kafka_bootstrap=f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(GaveUp, match=r"did not answer within 0\.3 s"):
            await set_up_systems(system, setup.Settings(attempts=1, attempt_timeout_s=0.3))


@pytest.fixture
def unused_tcp_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_the_model_is_made_and_pointed_to(tmp_path, monkeypatch):
    config = tmp_path / "serve.yaml"
    config.write_text("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
    link = tmp_path / "models" / "current"
    monkeypatch.setenv("REEF_CONFIG", str(config))
    monkeypatch.setenv("REEF_MODEL_PATH", str(link))
    assert model.main() == 0
    assert (link / "config.json").is_file()
    assert not Path(link.readlink()).is_absolute(), "the volume may be mounted elsewhere"
    assert model.main() == 0


def test_the_pointer_moves_in_one_step(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    model.point(link, tmp_path / "one")
    model.point(link, tmp_path / "two")
    assert link.resolve() == tmp_path / "two"
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "current"}


def test_a_model_that_does_not_exist_is_named(tmp_path, monkeypatch, capsys):
    config = tmp_path / "serve.yaml"
    config.write_text("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: /nowhere\n")
    monkeypatch.setenv("REEF_CONFIG", str(config))
    monkeypatch.setenv("REEF_MODEL_PATH", str(tmp_path / "models" / "current"))
    assert model.main() == 2
    assert "/nowhere" in capsys.readouterr().err


@pytest.fixture
def checkout(tmp_path):
    """What infra/secrets.sh works on."""
    (tmp_path / "infra" / "secrets").mkdir(parents=True)
    shutil.copy(ROOT / "infra/secrets.sh", tmp_path / "infra")
    shutil.copy(ROOT / ".env.example", tmp_path)
    return tmp_path


def run_secrets(checkout: Path) -> str:
    return subprocess.run(
        [checkout / "infra/secrets.sh"], capture_output=True, text=True, check=True
    ).stdout


def test_secrets_are_made_once_and_each_is_its_own(checkout):
    said = run_secrets(checkout)
    env = checkout / ".env"
    values = dict(re.findall(r"^([A-Z_]+)=(.*)$", env.read_text(), re.MULTILINE))
    example = dict(
        re.findall(r"^([A-Z_]+)=(.*)$", (checkout / ".env.example").read_text(), re.MULTILINE)
    )
    made = [values[name] for name, value in example.items() if value == "generate"]
    assert len(made) == len(set(made)) >= 7
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for value in made)
    assert {name: values[name] for name in values if example[name] != "generate"} == {
        name: value for name, value in example.items() if value != "generate"
    }
    assert env.stat().st_mode & 0o077 == 0
    before = env.read_text()
    assert run_secrets(checkout) == ""
    assert env.read_text() == before
    assert "reef-" in said


def test_the_token_that_is_shown_opens_the_gateway(checkout):
    token = re.search(r"this once: (\S+)", run_secrets(checkout))[1]
    path = checkout / "infra/secrets/tokens.yaml"
    (row,) = yaml.safe_load(path.read_text())
    assert row["sha256"] == hashlib.sha256(token.encode()).hexdigest()
    assert token not in path.read_text()
    grant = tokens.read(path).grant({b"authorization": f"Bearer {token}".encode()})
    assert grant.scopes == {"infer", "report", "read", "admin"}


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_of_a_container_follows_readiness(status, code):
    with lakefs(status=0 if status == 200 else status) as (url, _):
        address = "http://" + url.split("@")[1].split("/")[0]
        found = subprocess.run(
            ["python3", "-IS", str(ROOT / "infra/ready.py"), f"{address}/readyz"],
            capture_output=True,
            check=False,
        )
    assert found.returncode == code
