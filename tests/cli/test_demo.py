"""The demonstration's figures: independent draws, intervals, the end of a run, and its screen."""

import asyncio
import io
import json
import random
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import pytest
import typer
from rich.console import Console

from recipes.sao.demo import DEMONSTRATIONS
from reefcli.demo import report
from reefcli.demo.attempt import carry_out
from reefcli.demo.command import demo
from reefcli.demo.figures import Figures, Measurement
from reefcli.demo.run import Demo
from reefcli.demo.stage import LiveStage
from reefcli.demo.view import View
from reefcommon.events import CandidateEvaluated, CandidateProposed, Evaluation, utc_now
from reefstack.errors import StackFailed

SMOLLM2 = DEMONSTRATIONS["smollm2"]()
METHOD, PERMUTED = SMOLLM2.arms


class Client:
    """Answers as the OpenAI client does, and keeps the requests."""

    def __init__(self, text: str = "A lamp is") -> None:
        self.requests: list[dict] = []
        self.chat = SimpleNamespace(completions=self)
        self._text = text

    async def create(self, **request):
        self.requests.append(request)
        message = SimpleNamespace(message=SimpleNamespace(content=self._text))
        return SimpleNamespace(choices=[message] * request["n"])


def stage(client, http=None, arm=METHOD) -> LiveStage:
    figures, shown = Figures(), DEMONSTRATIONS["smollm2"]()
    view = View(Console(file=io.StringIO()), shown, figures)
    made = LiveStage(shown, "http://nowhere", figures, 0, arm, view, Path("nowhere"))
    made._model, made._http = client, http
    return made


def ranges(client: Client) -> list[set[int]]:
    return [set(range(r["seed"], r["seed"] + r["n"])) for r in client.requests]


async def test_no_two_measurements_share_a_stream_of_randomness():
    client = Client()
    live = stage(client)
    for measurement in (1, 2, 3):
        await live.demonstration.measure(live, "r1-a", measurement, 8)
    seeds = ranges(client)
    assert len(seeds) == 3 * len(SMOLLM2.test_tasks)
    assert len(set.union(*seeds)) == sum(map(len, seeds)), "neighbours of a seed count as its own"


async def test_a_measurement_is_pinned_and_not_recorded():
    client = Client()
    live = stage(client)
    found = await live.demonstration.measure(live, "r7-b", 1, 1)
    assert {tuple(sorted(r["extra_headers"].items())) for r in client.requests} == {
        (("x-reef-capture", "false"), ("x-reef-release-id", "r7-b"))
    }
    assert (found.mean, found.answers) == (1.0, 24)
    assert 0.8 < found.low < 1.0 == pytest.approx(found.high), "24 questions prove no certainty"


class Busy(Client):
    """Answers a question when it is asked for the last time; `times`: how often it does not."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    async def create(self, **request):
        asked = [one["seed"] for one in self.requests].count(request["seed"])
        answer = await super().create(**request)
        if asked < self._times:
            raise openai.APITimeoutError(httpx.Request("POST", "http://nowhere"))
        return answer


async def test_a_held_out_question_that_times_out_is_asked_again(monkeypatch):
    monkeypatch.setattr("reefcli.demo.stage.PAUSE_S", 0.0)
    calm, busy = stage(Client()), stage(Busy(2))
    figures = [await live.demonstration.measure(live, "r1-a", 1, 8) for live in (calm, busy)]
    assert figures[0] == figures[1]
    assert "no answer (Request timed out.); asking again" in "\n".join(busy.view.lines)
    with pytest.raises(openai.APITimeoutError):
        await busy.demonstration.measure(stage(Busy(3)), "r1-a", 1, 8)


@pytest.mark.parametrize("error", [openai.APITimeoutError, httpx.ReadTimeout, StackFailed])
def test_a_run_that_is_not_answered_ends_with_words(monkeypatch, tmp_path, error):
    async def run(_self) -> None:
        async with asyncio.TaskGroup() as group:
            request = httpx.Request("POST", "http://nowhere")
            made = error(request) if error is openai.APITimeoutError else error("it is away")
            group.create_task(failing(made))

    async def failing(made: Exception) -> None:
        raise made

    monkeypatch.setattr(Demo, "run", run)
    out = io.StringIO()
    state = tmp_path / "state"
    attempt = carry_out(Demo(SMOLLM2, state, 0, Console(file=out, width=80), METHOD), fresh=True)
    told = out.getvalue()
    assert attempt.run.stopped == "failure"
    if error is StackFailed:
        assert attempt.failure == "it is away"
    else:
        assert "a question of the demonstration has no answer: " in told
        assert f"{state / 'logs'} may say why; --continue goes on" in told
    assert "Traceback" not in told


class Http:
    """Takes reports as the gateway does."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    async def post(self, _path: str, *, json: dict) -> SimpleNamespace:
        self.scores.append(json["score"])
        return SimpleNamespace(raise_for_status=lambda: None)


class Answering:
    """A client whose answers are the given texts, one after the other."""

    def __init__(self, texts) -> None:
        self._texts = iter(texts)
        completions = SimpleNamespace(with_raw_response=SimpleNamespace(create=self._create))
        self.chat = SimpleNamespace(completions=completions)

    async def _create(self, **_request) -> SimpleNamespace:
        message = SimpleNamespace(message=SimpleNamespace(content=next(self._texts)))
        return SimpleNamespace(
            headers={"x-reef-agent-record-id": "rec-1"},
            parse=lambda: SimpleNamespace(choices=[message]),
        )


@pytest.mark.parametrize("permuted", [False, True])
async def test_permuted_rewards_are_those_of_other_answers(permuted):
    own = [float(number % 3 == 0) for number in range(400)]
    texts = ["A lamp" if score else "The lamp" for score in own]
    http = Http()
    live = stage(Answering(texts), http, PERMUTED if permuted else METHOD)
    rng = random.Random(0)
    for _ in own:
        await live.demonstration.visit(live, rng)
    assert live.figures.rewards == http.scores
    assert live.figures.experienced == len(http.scores)
    if not permuted:
        assert http.scores == own
        return
    assert len(http.scores) == len(own) - SMOLLM2.batch
    left = sum(live.demonstration._pool)
    assert sum(http.scores) + left == sum(own), "each reward is given once"
    equal = sum(a == b for a, b in zip(http.scores, own[SMOLLM2.batch :], strict=True))
    assert 0.45 < equal / len(http.scores) < 0.66, "5 of 9, as of independent draws"


def test_going_on_draws_new_seeds(monkeypatch, tmp_path):
    seeds = []

    async def run(self) -> None:
        seeds.append(self.seed)

    monkeypatch.setattr(Demo, "run", run)
    for fresh in (True, True, False, False):
        with pytest.raises(typer.Exit):
            demo(state_dir=tmp_path / "state", seed=3, fresh=fresh)
    assert seeds[:2] == [3, 3]
    assert len(set(seeds)) == 3


def point(low: float, sequence: int = 9) -> Measurement:
    return Measurement(1.0, sequence, f"r{sequence}-a", low + 0.05, low, low + 0.1, 96)


@pytest.mark.parametrize(("low", "learned", "reached"), [(0.71, 5, True), (0.69, 5, False), (0.9, 4, False)])  # fmt: skip
def test_the_fresh_measurement_decides_whether_the_goal_is_reached(low, learned, reached):
    run = Demo(SMOLLM2, Path("nowhere"), 0, Console(file=io.StringIO()), METHOD)
    run.figures.heldout.append(point(0.99))
    assert not run.reached, "the figure that stopped the run is not the figure that counts"
    training = SimpleNamespace(release=SimpleNamespace(operation="training"))
    run.figures.releases += [training] * learned
    run.figures.final = point(low)
    assert run.reached == reached


def test_a_pipe_gets_no_flood_of_status_lines():
    out = io.StringIO()
    view = View(Console(file=out), SMOLLM2, Figures())
    view.say("begins")
    for number in range(1000):
        view.status(f"{number} answers judged")
    assert len(out.getvalue().splitlines()) == 1


def test_a_terminal_shows_the_status_in_place():
    out = io.StringIO()
    view = View(Console(file=out, force_terminal=True, width=100), SMOLLM2, Figures())
    for number in range(1000):
        view.status(f"{number} answers judged")
    assert out.getvalue() == ""
    shown = io.StringIO()
    Console(file=shown, width=100).print(view.panel())
    assert "999 answers judged" in shown.getvalue()


def test_a_run_leaves_a_log_figures_and_a_picture(tmp_path):
    figures = Figures(
        rewards=[0.0, 1.0] * 20, experienced=40, before=["The\x1b[2J lamp"], after=["A lamp"]
    )
    figures.heldout += [point(0.1, 0), point(0.85, 1)]
    figures.final = point(0.8, 1)
    summary = figures.summary(model="smollm2", elapsed_s=1.0, reached=True)
    summary |= {"stopped_by": "goal", "limit_s": 900}
    report.keep(tmp_path, ["one", "two"], summary)
    kept = json.loads((tmp_path / "demo.json").read_text())
    assert kept["heldout_last_interval"] == [0.8, 0.9]
    assert kept["heldout_first"] < kept["heldout_last"]
    assert (tmp_path / "demo.log").read_text() == "one\ntwo\n"
    assert report.draw_png(figures, SMOLLM2, tmp_path / "r.png").stat().st_size > 10_000
    out = io.StringIO()
    report.show(Console(file=out, width=80), figures, SMOLLM2, summary)
    assert "before  The[2J lamp" in out.getvalue()
    figure = "0.150 [0.100, 0.200] of 96 answers -> 0.850 [0.800, 0.900] of 96 answers"
    assert figure in out.getvalue()
    out = io.StringIO()
    short = summary | {"stopped_by": "limit", "reached": False}
    report.show(Console(file=out, width=80), figures, SMOLLM2, short)
    told = out.getvalue().replace("\n", " ")
    assert "The demonstration ended at its limit, 15 min after its start-up" in told
    assert "before its goal: 0 of 5 releases; --continue goes on" in told
    assert "NOT" not in told
    figures.final = point(0.6, 1)
    report.show(Console(file=out, width=80), figures, SMOLLM2, short)
    assert "0 of 5 releases and a lower bound of 0.600 where the goal is 0.7" in out.getvalue()
    figures.final = point(0.8, 1)
    out = io.StringIO()
    report.show(Console(file=out, width=80), figures, SMOLLM2, summary | {"rewards_permuted": True})
    assert "The control arm, with permuted rewards, reached its goal" in out.getvalue()
    assert figures.improved
    figures.final = point(0.15, 1)
    assert not figures.improved, "the intervals overlap"


def test_the_panel_shows_the_limit_and_never_stands_still():
    view = View(Console(file=io.StringIO(), force_terminal=True, width=100), SMOLLM2, Figures())
    view.loop_began = time.monotonic() - 65
    shown = io.StringIO()
    Console(file=shown, width=100).print(view.panel())
    assert "1:05 (limit 15:00, --minutes)" in shown.getvalue()


def proposed(number: int) -> CandidateProposed:
    return CandidateProposed(
        event_id=f"cnd-{number}",
        at=utc_now(),
        scenario="default",
        kind="lora",
        content_id="a",
        base_release_id="r0",
    )


def test_a_verdict_that_is_read_before_its_candidate_ends_the_comparison():
    figures, evaluation = Figures(), Evaluation(
        verdict="select", policy="always", reason="", head_release_id="r0"
    )  # fmt: skip
    judged = CandidateEvaluated(
        event_id="e", at=utc_now(), scenario="default", candidate=proposed(1), evaluation=evaluation
    )
    for event in (judged, proposed(1), proposed(2)):
        assert figures.take(event)
    assert figures.candidates == 2
    assert list(figures.comparing) == ["cnd-2"]


def test_of_the_last_run_the_releases_count_alone():
    figures = Figures()
    assert figures.take(proposed(1), of_last_run=True)
    assert not figures.comparing
    assert figures.take(proposed(2))
    assert not figures.take(proposed(2)), "a repeat"
    assert [number for number, _ in figures.comparing.values()] == [1]


async def test_a_socks_proxy_of_the_shell_is_nothing_to_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """rembg 855: httpx refuses any client if `ALL_PROXY` speaks SOCKS."""
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    with pytest.raises(ValueError, match="Unknown scheme"):
        httpx.AsyncClient()
    async with stage(None).connected():
        pass
