"""Work that ends although it never should: its process ends, and says why."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, contextlib, sys
from starlette.applications import Starlette
from reefcommon.lasting import end, lasting
from reefcommon.ops import run

async def work():
    await asyncio.sleep(float(sys.argv[1]))
    if sys.argv[2] == "fails":
        raise RuntimeError("a fault nobody thought of")

@contextlib.asynccontextmanager
async def life(_app):
    task = lasting(work(), "learning")
    yield
    await end((task,))
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
