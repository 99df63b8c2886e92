"""A demonstration without users: it ends when the seeker is done, and has a figure of its own."""

import asyncio
import io
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import httpx
from rich.console import Console

from reefcli.demo import report, run
from reefcli.demo.run import Demo, seekers_done
from reefcli.demo.view import View
from reefcommon.demonstration import Arm, Demonstration, Measured
from reefcommon.events import CandidateProposed, utc_now

VALUES = {"r0": 0.0, "r1": 1.5, "r2": 2.25}


@dataclass(kw_only=True)
class Climb(Demonstration):
    """The figure of a release is a value of its own."""

    async def measure(self, stage, release_id, measurement, n):
        value = VALUES[release_id]
        return Measured(value, value, value, 64 * int(release_id[1:]))


def climbing() -> Climb:
    return Climb(
        recipe="climb",
        model="tiny",
        about="it climbs",
        signal="height",
        config=Path("serve.yaml"),
        max_tokens=1,
        batch=1,
        minutes=1,
        users=0,
        figure="height",
        most=2.5,
        goal=2.0,
        releases_goal=1,
    )


def status(*states: str) -> dict:
    seekers = {f"binding-{n}": {"seek": {"state": state}} for n, state in enumerate(states)}
    return {"services": {"trainer": {"bindings": {**seekers, "users": {}}}, "gateway": {}}}


def test_all_seekers_must_be_done():
    assert seekers_done(status("done", "done"))
    assert not seekers_done(status("done", "seeking"))
    assert not seekers_done(status()), "none has begun"


def release(number: int):
    operation = "training" if number else "creation"
    row = SimpleNamespace(
        operation=operation, release_id=f"r{number}", sequence=number, evaluation=None
    )
    return SimpleNamespace(release=row)


async def test_the_run_ends_when_the_seeker_is_done_and_all_candidates_have_verdicts(
    monkeypatch, tmp_path
):
    shown, console = climbing(), Console(file=io.StringIO(), width=120)
    demo = Demo(shown, tmp_path, 7, console, Arm("method"))
    demo.figures.releases.append(release(0))
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/reef/scenarios":
            return httpx.Response(200, json={"data": [{"head": {"release_id": "r0"}}]})
        asked.append(len(demo.figures.releases))
        if len(asked) == 2:
            waits = CandidateProposed(
                event_id="cnd-1", at=utc_now(), scenario="default", kind="lora", content_id="a",
                base_release_id="r0",
            )  # fmt: skip
            demo.figures.take(waits)
        if len(asked) == 6:
            demo.figures.comparing.clear()
            demo.figures.releases.append(release(2))
            demo._released.set()
        return httpx.Response(200, json=status("seeking" if len(asked) < 2 else "done"))

    client, sleep = httpx.AsyncClient, asyncio.sleep
    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(run.httpx, "AsyncClient", lambda **kw: client(transport=transport, **kw))
    monkeypatch.setattr(run.asyncio, "sleep", lambda _seconds: sleep(0.01))
    demo._released.set()
    stage = SimpleNamespace(
        gateway_url="http://gateway", shown=lambda _id: sleep(0, []), crowd=asyncio.Event().wait
    )
    await asyncio.wait_for(demo._until_goal(stage), 10)
    await demo._finally(stage)
    assert len(asked) >= 8, "three looks without a candidate that waits"
    assert [point.mean for point in demo.figures.heldout] == [0.0, 2.25]
    assert demo.reached
    assert demo.figures.final.answers == 128
    assert "height of release 2: 2.2500 of 128 answers" in "\n".join(demo.view.lines)


def test_the_report_names_the_figure_and_no_users(tmp_path):
    shown = climbing()
    demo = Demo(shown, tmp_path, 0, Console(file=io.StringIO()), Arm("method"))
    figures = demo.figures
    figures.releases += [release(0), release(1), release(2)]
    figures.heldout += [
        run.Measurement(float(n), n, name, value, value, value, 64 * n)
        for n, (name, value) in enumerate(VALUES.items())
    ]
    figures.final = figures.heldout[-1]
    summary = figures.summary(model="tiny", elapsed_s=3.0, reached=True)
    out = io.StringIO()
    report.show(Console(file=out, width=100), figures, shown, summary | {"stopped_by": "done"})
    text = out.getvalue()
    assert "Height 0.0000 of 0 answers -> 2.2500 of 128 answers." in text
    assert "held-out" not in text
    panel = io.StringIO()
    Console(file=panel, width=100).print(View(Console(), shown, figures).panel())
    assert "users' reward" not in panel.getvalue()
    assert "curve ▁▅█" in panel.getvalue()
    picture = report.draw_png(figures, shown, tmp_path / "reward.png")
    assert picture.stat().st_size > 10_000
