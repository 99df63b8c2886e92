"""Work that ends although it never should: its process ends, and says why."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reefcommon.errors import Unavailable
from reefkit.background import Periodic, cancel, run_forever

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, contextlib, sys
from starlette.applications import Starlette
from reefkit.background import cancel, run_forever
from reefkit.ops import run

async def work():
    await asyncio.sleep(float(sys.argv[1]))
    if sys.argv[2] == "fails":
        raise RuntimeError("a fault nobody thought of")

@contextlib.asynccontextmanager
async def life(_app):
    task = run_forever(work(), "learning")
    yield
    await cancel((task,))
    print("ended in order")

run(Starlette(lifespan=life), host="127.0.0.1", port=0)
"""


@pytest.mark.parametrize("how", ["fails", "returns"])
def test_a_loop_that_ends_ends_its_process_in_order_and_its_log_says_why(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "0.2", how], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env={"PYTHONPATH": f"{ROOT / 'libs'}:{ROOT}"},
    )  # fmt: skip
    assert done.stdout.strip().endswith("ended in order")
    said = done.stdout + done.stderr
    assert "work_ended" in said
    assert ("a fault nobody thought of" in said) is (how == "fails")
    assert done.returncode == 0


async def test_a_lost_cancellation_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without that a gateway that is stopped half a second after its start may never end."""
    monkeypatch.setattr("reefkit.background.CANCEL_AGAIN_S", 0.01)
    lost = 0

    async def work() -> None:
        nonlocal lost
        while lost < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await cancel((task,))
    assert (lost, task.cancelled()) == (3, True)


async def test_a_repeated_failure_is_logged_once_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter(
        [
            Unavailable("the disk is full"),
            Unavailable("the disk is full"),
            Unavailable("away"),
            None,
        ]
    )
    shown: list[str | None] = []
    over = asyncio.Event()

    async def work() -> int:
        shown.append(await rounds.check())
        outcome = next(outcomes, None)
        if outcome is not None:
            raise outcome
        if len(shown) > 4:
            over.set()
        return len(shown)

    rounds = Periodic("keeping", work, every_s=0.001)
    told: list[dict[str, Any]] = []
    recorder = SimpleNamespace(warning=lambda event, **more: told.append({"event": event, **more}))
    monkeypatch.setattr("reefkit.background.log", recorder)
    task = run_forever(rounds.run(), rounds.name)
    async with asyncio.timeout(60):
        await over.wait()
    await cancel((task,))
    assert shown[:5] == [None, "the disk is full", "the disk is full", "away", None]
    assert [line["reason"] for line in told if line["event"] == "round_failed"] == [
        "the disk is full",
        "away",
    ]
    assert rounds.result
