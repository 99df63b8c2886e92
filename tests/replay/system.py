"""A broker, Redis and the experience service as processes, filled with traffic; and `reef replay` on them, as a process too.

chDB takes one store a process: neither the service nor the replay can run in the test's own.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from reefcommon.config import parse
from reefkit.redis_heads import connect
from reefstack.embedded import Options, Stack, embedded_stack
from tests.replay.traffic import Traffic, fill

CONFIG = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
ENV = {"REEF_EXPERIENCE_REPORT_WAIT_S": "2", "REEF_EXPERIENCE_SWEEP_EVERY_S": "0.5"}


@dataclass
class System:
    """What runs."""

    stack: Stack
    state_dir: Path

    async def fill(self, count: int, seed: int = 0) -> int:
        redis = connect(self.stack.redis_url)
        try:
            return await fill(self.stack.kafka_bootstrap, Traffic(count, seed), redis)
        finally:
            await redis.aclose()

    def command(self, *words: str) -> tuple[str, ...]:
        return sys.executable, "-m", "reefcli", "replay", "--state-dir", str(self.state_dir), *words

    async def replay(
        self, *words: str, within_s: float = 240.0
    ) -> tuple[int, dict[str, object], str]:
        """Exit code, the JSON, standard error."""
        env = {**os.environ, **ENV, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = await asyncio.create_subprocess_exec(
            *self.command("--json", *words),
            env=env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(child.communicate(), within_s)
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return child.returncode or 0, orjson.loads(out) if out.strip() else {}, err.decode()

    async def idle(self, within_s: float = 240.0) -> None:
        """Wait until the service has handled everything."""
        async with (
            asyncio.timeout(within_s),
            httpx.AsyncClient(base_url=self.stack.urls["experience"], timeout=30) as http,
        ):
            while True:
                status = (await http.get("/status")).json()
                if status["lag"] and not any(status["lag"].values()):
                    return
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def system(state_dir: Path, *, memory_broker: bool = True) -> AsyncIterator[System]:
    """Started on free ports, ended on leaving."""
    options = Options(
        only=frozenset({"kafka", "redis", "experience"}),
        memory_broker=memory_broker,
        default_ports=False,
        env={**os.environ, **ENV, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    async with embedded_stack(CONFIG, state_dir, options) as stack:
        yield System(stack, state_dir)
