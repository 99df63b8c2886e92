"""docs/providers.md: its files can be used, its commands run as printed, and its recipe decides."""

import random
import re
import shlex
from pathlib import Path

import httpx
import pytest

from recipes.examples import canary
from reefcommon.config import parse
from tests.cli.conftest import gateway  # noqa: F401 - a fixture
from tests.cli.fake_gateway import FakeGateway, reef

PAGE = Path("docs/providers.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


def test_its_files_can_be_used():
    files = [parse(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    first, second = files
    assert first.serving.upstreams_of("support") == ("openai", "spare")
    assert first.serving.upstreams_of("other") == ("served", "openai")
    assert second.reef[0].requires_harness == "head"
    assert second.reef[0].knobs == {"batch_size": 8}


def test_its_commands_run_as_printed(gateway: FakeGateway):  # noqa: F811
    published = (200, {"release_id": "r6-1", "traffic": None})
    gateway.answers["/reef/scenarios/default/routing"] = published
    run = [shlex.split(line) for line in COMMANDS if line.startswith("reef ")]
    shown = [reef(*words) for _, *words in run]
    assert "r5-0a1b2c gets 10 % of the sessions" in shown[1]
    assert "and those with client=beta" in shown[2]
    assert "all sessions go to the head" in shown[4]
    sent = [body for verb, path, _, body in gateway.asked if path.endswith("/routing")]
    rule = {"tag": "client", "value": "beta", "release": "r5-0a1b2c"}
    assert [(body["shares"], body["rules"]) for body in sent] == [
        ({"r5-0a1b2c": 0.1}, []),
        ({"r5-0a1b2c": 0.1}, [rule]),
        ({}, []),
    ]


async def test_its_recipe_runs_as_printed(monkeypatch):
    (line,) = [
        line for line in COMMANDS if line.startswith(".venv/bin/python -m recipes.examples.canary ")
    ]
    ran = []

    async def run(self):
        ran.append((self.scenario, self.release_id, self.share, self.confidence))
        return "worse"

    monkeypatch.setattr(canary.Canary, "run", run)
    monkeypatch.setattr("sys.argv", shlex.split(line)[2:])
    assert await canary.main() == 1
    assert ran == [("default", "r5-0a1b2c", 0.1, 0.95)]


def test_a_command_that_says_too_little_is_refused(gateway: FakeGateway):  # noqa: F811
    for words in (["r5"], ["--share", "0.1"], ["r5", "--end"], ["r5", "--tag", "beta"]):
        assert gateway.asked == []
        reef("canary", "default", *words, code=1)


class Rewards:
    """A gateway in memory: a tenth of its sessions is the release's, with rewards of its own."""

    def __init__(self, better: float, *, pending: bool) -> None:
        self.draws, self.better, self.pending = random.Random(1), better, pending
        self.samples, self.posted = [], []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        verb = request.url.path.rpartition("/")[2]
        if request.method == "POST":
            self.posted.append(verb)
            return httpx.Response(200, json={})
        if verb == "releases":
            row = {"release_id": "r5", "pending": self.pending}
            return httpx.Response(200, json={"data": [row]})
        first = len(self.samples)
        self.samples += [self.sample(first + number) for number in range(200)]
        return httpx.Response(200, json={"data": self.samples, "next_cursor": None})

    def sample(self, number: int) -> dict[str, object]:
        mine = number % 10 == 0
        score = self.draws.random() + (self.better if mine else 0.0)
        release = "r5" if mine else "r4"
        return {
            "sample_id": f"s{number}",
            "session_id": f"x{number}",
            "release_id": release,
            "score": score,
        }


@pytest.mark.parametrize(
    ("better", "pending", "found", "posted"),
    [
        (0.5, True, "better", ["routing", "promote"]),
        (0.5, False, "better", ["routing"]),
        (-0.5, True, "worse", ["routing", "routing"]),
    ],
)
async def test_the_recipe_promotes_what_is_better_and_takes_out_what_is_worse(
    better, pending, found, posted
):
    users = Rewards(better, pending=pending)
    transport = httpx.MockTransport(users)
    async with httpx.AsyncClient(base_url="http://reef", transport=transport) as http:
        tried = canary.Canary(http, "default", "r5", 0.1, 0.95, every_s=0.0)
        assert await tried.run() == found
    assert users.posted == posted


def test_equal_releases_are_called_different_in_few_runs():
    """Over all looks of a run; 0.05 is asked for."""
    draws, wrong = random.Random(2), 0
    for _ in range(200):
        tried, others = [], []
        for _ in range(16):
            tried += [draws.random() for _ in range(20)]
            others += [draws.random() for _ in range(20)]
            if len(tried) in {20, 40, 80, 160, 320}:
                look = canary.look_of(len(tried))
                wrong += canary.verdict(tried, others, canary.error_at(look, 0.95)) != "open"
                continue
    assert wrong <= 20  # of 200: 0.05 would be 10


def test_the_turns_of_a_session_are_one_draw():
    row = {"session_id": "a", "release_id": "r5", "sample_id": "1"}
    rows = [{**row, "score": 0.0}, {**row, "score": 1.0}, {**row, "score": None}]
    assert canary.by_session(rows, "r5") == ([0.5], [])
